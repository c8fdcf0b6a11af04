"""Compares the outputs of bench/law/beside.c of two commits: compare.py OLD NEW"""
import sys
def load(f):
    d={}
    for l in open(f):
        w=l.split()
        if len(w)<3 or w[1]!='ok': d[int(w[0])]=None; continue
        d[int(w[0])]={w[i]:float(w[i+1]) for i in range(2,len(w)-1,2)}
    return d
a,b=load(sys.argv[1]),load(sys.argv[2])
n=both=0;refo=refn=0;races=[0,0];red=[0,0];w=[0,0];mv=[0,0];ms=[0,0];longer=shorter=dev=host=file=0;worst=1;best=1
for k in a:
    x,y=a[k],b.get(k)
    refo+=x is None; refn+=y is None
    if not x or not y or x['spilled']!=y['spilled']: continue
    both+=1
    for i,z in enumerate((x,y)):
        races[i]+=z['races']; red[i]+=z['redundant']; w[i]+=z['waits']; mv[i]+=z['moved']; ms[i]+=z['makespan']
    dev+=y['device']>x['device']; host+=y['host']>x['host']; file+=y['file']>x['file']
    r=y['makespan']/x['makespan'] if x['makespan'] else 1
    longer+=r>1+1e-9; shorter+=r<1-1e-9; worst=max(worst,r); best=min(best,r)
print(f"{len(a)} descs, refused old {refo} new {refn}, compared {both}: races {races}, redundant {red}, waits {w}, bytes moved {mv[1]/max(mv[0],1):.4f}, more device {dev} host {host} file {file}, makespan {ms[1]/max(ms[0],1):.5f}, longer {longer} (worst {worst:.4f}) shorter {shorter} (best {best:.4f})")
