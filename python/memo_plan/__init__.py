# SPDX-License-Identifier: MIT
"""Offsets for buffers with known sizes and lifetimes, in the least memory: proven optimal, or with a gap.

    import memo_plan
    plan = memo_plan.Plan(begins=[0, 5, 12], ends=[10, 15, 20], sizes=[64, 32, 64]).solve()
    print(plan.offsets, plan.peak, plan.bound, plan.is_optimal)     # [0, 64, 0] 96 96 True
"""
import csv
import ctypes
import operator
import os
import pathlib
import threading
import types
import weakref
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_uint64, c_void_p

from . import check_proof, snapshot_to_trace

__all__ = ["Error", "Infeasible", "Plan"]


class Error(Exception):
    """What memo refuses, in its words; status is the kind, such as "invalid argument"."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


class Infeasible(Error):
    """The search found no plan that fits the capacity.  The plan keeps the best offsets that it found."""


# ---- the structs of memo.h and memo_plan.h ----

class _Error(Structure):
    _fields_ = [("status", c_int), ("line", c_int64), ("message", c_char * 496)]


class _Buffer(Structure):
    _fields_ = [("id", c_int64), ("size_bytes", c_int64), ("begin", c_int64), ("end", c_int64),
                ("offset_bytes", c_int64), ("alignment_bytes", c_int64), ("is_fixed", c_int32), ("stream", c_int32),
                ("lane", c_int32), ("memory_class", c_int)]


class _Gap(Structure):
    _fields_ = [("buffer", c_int64), ("begin", c_int64), ("end", c_int64)]


class _Plan(Structure):
    _fields_ = [("buffers", POINTER(_Buffer)), ("n_buffers", c_int64), ("gaps", POINTER(_Gap)), ("n_gaps", c_int64),
                ("holds", c_void_p), ("n_holds", c_int64), ("waits", c_void_p), ("n_waits", c_int64),
                ("alignment_bytes", c_int64), ("n_times", c_int64), ("body_begin", c_int64), ("peak_bytes", c_int64),
                ("lower_bound_bytes", c_int64), ("proof", c_int), ("engine", c_char * 16)]


_LOG = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)


class _Desc(Structure):
    _fields_ = [("engine", c_int), ("capacity_bytes", c_int64), ("time_limit_s", c_double), ("seed", c_uint64),
                ("n_threads", c_int32), ("log", _LOG), ("log_user", c_void_p), ("stop", c_void_p), ("trace", c_void_p),
                ("offers", c_void_p), ("n_offers", c_int64), ("node_limit", c_int64)]


_library = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libmemo_plan.so")))
_mirrors = (_Error, _Buffer, _Gap, _Plan, _Desc)
if list((c_int64 * 5).in_dll(_library, "memo_python_sizes")) != [ctypes.sizeof(m) for m in _mirrors]:
    raise ImportError("memo_plan: libmemo_plan.so is of another version; install the package again")
_library.memo_status_name.restype = c_char_p
_library.memo_plan_destroy.argtypes = _library.memo_trace_destroy.argtypes = [c_void_p]
_library.memo_plan_destroy.restype = _library.memo_trace_destroy.restype = None
_INFEASIBLE, _OPTIMAL = 6, 2
_ENGINES = {"auto": 0, "greedy": 1, "bilevel": 3}


def _refuse(message):
    raise Error(message, "invalid argument")


def _call(name, *arguments):
    error = _Error()
    status = getattr(_library, name)(*arguments, ctypes.byref(error))
    if status:
        kind = Infeasible if status == _INFEASIBLE else Error
        raise kind(error.message.decode("utf-8", "replace"), _library.memo_status_name(status).decode())


def _integer(value, what, bits=64):
    try:
        value = operator.index(value)
    except TypeError:
        _refuse(f"{what}: not a whole number ({value!r})")
    if not -2**(bits - 1) <= value < 2**(bits - 1):  # ctypes would cut it
        _refuse(f"{what}: more than {bits} bits ({value})")
    return value


def _is_main():
    return threading.current_thread() is threading.main_thread()


def _list(values, what, n=None, kind="numbers"):
    """n values, or any number of them."""
    values = values.tolist() if hasattr(values, "tolist") else values
    try:
        values = list(values)
    except TypeError:
        _refuse(f"{what}: not a sequence ({values!r}); a list or an array of {kind} would work")
    if n is not None and len(values) != n:
        _refuse(f"{what}: {len(values)} {kind} for {n} buffers")
    return values


def _integers(values, what, n=None):
    return [_integer(value, f"{what}[{i}]") for i, value in enumerate(_list(values, what, n))]


def _times(values, what, n):
    """Numbers, or vector clocks: tuples of numbers."""
    values = _list(values, what, n)
    if any(hasattr(value, "__len__") for value in values):
        return [tuple(_integers(value, f"{what}[{i}]")) for i, value in enumerate(values)]
    return _integers(values, what)


def _check_clocks(begins, ends):
    for what, times in (("begins", begins), ("ends", ends)):
        for i, time in enumerate(times):
            if not isinstance(time, tuple):
                _refuse(f"{what}: numbers beside vector clocks; of both a kind would work")
            if len(time) != len(begins[0]):
                _refuse(f"{what}[{i}]: {len(time)} clocks, where begins[0] has {len(begins[0])}")
            if what == "ends" and any(begin > end for begin, end in zip(begins[i], time)):
                _refuse(f"ends[{i}]: a clock is before that of begins[{i}] ({begins[i]}, {time})")


def _restore(cls, source, is_numpy, solution):
    """A copy of a plan.  The solution is validated, as is all that comes from a pickle."""
    is_trace = isinstance(source[0], bytes)
    plan = cls.from_trace(*source) if is_trace else cls.__new__(cls)
    if not is_trace:
        Plan.__init__(plan, *source)
    plan._is_numpy = is_numpy
    if solution:
        own = plan._plan[0]
        offsets, own.peak_bytes, own.lower_bound_bytes, own.proof, own.engine = solution
        for i, offset in enumerate(_integers(offsets, "offsets", len(plan))):
            own.buffers[i].offset_bytes = offset
        _call("memo_plan_validate", plan._plan)
    return plan


class Plan:
    """Buffers, and after solve() their offsets.  copy and pickle make independent plans, solved if this one is.

    Buffer i lives in [begins[i], ends[i]).  Sequences of whole numbers or numpy arrays; offsets are a numpy array if
    sizes is.  alignments[i], a power of two, may exceed alignment.  offsets[i], if not None, is fixed.  gaps are
    (buffer, begin, end) in which the buffer takes no memory.  names has a name for each buffer; default: its number.

    begins and ends may be vector clocks, a number for each thread: a buffer is free before another begins if no clock
    of its end is after that of the other's begin.  Otherwise the two share no byte.  There are no gaps then."""

    def __init__(self, begins, ends, sizes, alignment=1, alignments=None, offsets=None, gaps=(), names=None):
        self._is_numpy = type(sizes).__module__ == "numpy"
        sizes = _integers(sizes, "sizes")
        n = len(sizes)
        begins, ends = _times(begins, "begins", n), _times(ends, "ends", n)
        has_clocks = any(isinstance(time, tuple) for time in begins + ends)
        if has_clocks:
            _check_clocks(begins, ends)
        alignment = _integer(alignment, "alignment")
        alignments = [0] * n if alignments is None else _integers(alignments, "alignments", n)
        offsets = [None] * n if offsets is None else _list(offsets, "offsets", n)
        offsets = [None if offset is None else _integer(offset, f"offsets[{i}]") for i, offset in enumerate(offsets)]
        gaps = [_integers(gap, f"gaps[{i}]") for i, gap in enumerate(_list(() if gaps is None else gaps, "gaps"))]
        for i, gap in enumerate(gaps):
            if len(gap) != 3:
                _refuse(f"gaps[{i}]: {len(gap)} numbers; (buffer, begin, end) would work")
            if has_clocks:
                _refuse("gaps: none are possible with vector clocks")
        self.names = [str(i) for i in range(n)] if names is None else _list(names, "names", n, "names")

        pointer = POINTER(_Plan)()
        _call("memo_plan_create", c_int64(n), c_int64(len(gaps)), c_int64(alignment), ctypes.byref(pointer))
        self._keep(pointer, None, (begins, ends, sizes, alignment, alignments, offsets, gaps))
        for i in range(n):  # a sum of clocks is a time that respects their order
            fixed = offsets[i] is not None
            begin = _integer(sum(begins[i]), f"begins[{i}]") if has_clocks else begins[i]
            end = _integer(sum(ends[i]), f"ends[{i}]") if has_clocks else ends[i]
            pointer[0].buffers[i] = _Buffer(i, sizes[i], begin, end, offsets[i] if fixed else 0, alignments[i], fixed)
        for i, (buffer, begin, end) in enumerate(gaps):
            pointer[0].gaps[i] = _Gap(buffer, begin, end)
        if has_clocks:
            clocks = [(c_int64 * (n * len(begins[0])))(*(c for time in times for c in time)) for times in (begins, ends)]
            _call("memo_python_hold", pointer, c_int64(len(begins[0])), *clocks)
        _call("memo_plan_prepare", pointer)

    def _keep(self, plan, trace, source):
        self._plan, self._trace, self._source = plan, trace, source
        weakref.finalize(self, _library.memo_plan_destroy, ctypes.cast(plan, c_void_p))
        if trace:
            weakref.finalize(self, _library.memo_trace_destroy, trace)

    @classmethod
    def from_csv(cls, path, alignment=1):
        """A CSV of minimalloc: id,lower,upper,size; optional alignment, offset (fixed) and gaps ("3-5 8-9")."""
        columns = {name: [] for name in ("id", "lower", "upper", "size", "alignment", "offset")}
        gaps = []
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, skipinitialspace=True)
            heading = [name.strip() for name in next((row for row in lines if row and row[0][:1] != "#"), [])]
            missing = [name for name in ("id", "lower", "upper", "size") if name not in heading]
            if missing:
                raise Error(f"{path}: no column {missing[0]}; id,lower,upper,size would work", "format error")
            for row in lines:
                if not any(field.strip() for field in row):
                    continue
                if len(row) < len(heading):
                    raise Error(f"{path}:{lines.line_num}: {len(row)} fields of {len(heading)}", "format error")
                fields = dict(zip(heading, (field.strip() for field in row)))
                try:
                    for name, column in columns.items():
                        text = fields.get(name, "")
                        is_optional = name in ("alignment", "offset") and not text
                        column.append(text if name == "id" else None if is_optional else int(text))
                    for gap in fields.get("gaps", "").split():
                        name, text = "gaps", gap
                        begin, end = gap.split("-")
                        gaps.append((len(columns["id"]) - 1, int(begin), int(end)))
                except ValueError:
                    wanted = "written 3-5 8-9" if name == "gaps" else "a whole number"
                    raise Error(f"{path}:{lines.line_num}: {name} is not {wanted} ({text})", "format error") from None
        alignments = [value or 0 for value in columns["alignment"]]
        return cls(columns["lower"], columns["upper"], columns["size"], alignment, alignments, columns["offset"], gaps,
                   columns["id"])

    @classmethod
    def from_trace(cls, source, alignment=512):
        """A memo trace: the path of a file, or its bytes.  A buffer's name is its id; order is that of requests."""
        data = source if isinstance(source, bytes) else pathlib.Path(source).read_bytes()
        trace, plan, self = c_void_p(), POINTER(_Plan)(), cls.__new__(cls)
        _call("memo_trace_parse", c_char_p(data), c_int64(len(data)),
              b"trace" if data is source else os.fsencode(source), ctypes.byref(trace))
        try:
            _call("memo_plan_from_trace", trace, c_int64(_integer(alignment, "alignment")), ctypes.byref(plan))
            self._keep(plan, trace, (data, alignment))
        except Error:
            if not plan:
                _library.memo_trace_destroy(trace)
            raise
        self._is_numpy = False
        self.names = [str(buffer.id) for buffer in plan[0].buffers[:plan[0].n_buffers]]
        return self

    @classmethod
    def from_snapshot(cls, path, alignment=512, device=0, free="completed", resident=False, from_mark=None,
                      to_mark=None):
        """A memory snapshot of PyTorch; help(memo_plan.snapshot_to_trace) explains it, and the options."""
        if free not in ("completed", "requested"):
            _refuse(f"free: not completed or requested ({free!r})")
        options = types.SimpleNamespace(device=_integer(device, "device"), free=free, resident=resident,
                                        from_mark=from_mark, to_mark=to_mark)
        try:
            data = snapshot_to_trace.convert(snapshot_to_trace.load(path), options)
        except snapshot_to_trace.Refused as reason:
            raise Error(f"{path}: {reason}", "format error") from None
        return cls.from_trace(data, alignment)

    def __reduce__(self):
        own, solution = self._plan[0], None
        if self.is_solved:
            offsets = [buffer.offset_bytes for buffer in own.buffers[:len(self)]]
            solution = offsets, own.peak_bytes, own.lower_bound_bytes, own.proof, own.engine
        state = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return _restore, (type(self), self._source, self._is_numpy, solution), state

    def solve(self, capacity=0, time_limit=0, seed=0, threads=1, engine="auto", log=None, _node_limit=0):
        """Chooses offsets; returns the plan.  Raises Infeasible if capacity, in bytes, is given and not met.

        time_limit in seconds, 0: 10, beyond 8000 buffers 3.  Ctrl-C ends the search: the plan keeps the best offsets
        found, and KeyboardInterrupt is raised.  Only the main thread can be interrupted.  engine: auto, greedy or
        bilevel (traces).  log(text) gets a line for every attempt."""
        if engine not in _ENGINES:
            _refuse(f"engine: unknown ({engine!r}); auto, greedy or bilevel would work")
        try:
            time_limit = float(time_limit)
        except (TypeError, ValueError):
            _refuse(f"time_limit: not a number of seconds ({time_limit!r})")
        if log is not None and not callable(log):
            _refuse(f"log: not a function ({log!r}); log=print would work")
        write = _LOG(lambda user, text: log(text.decode("utf-8", "replace"))) if log else _LOG()
        desc = _Desc(_ENGINES[engine], _integer(capacity, "capacity"), time_limit, _integer(seed, "seed"),
                     _integer(threads, "threads", 32), write, None, None, self._trace, node_limit=_node_limit)
        _call("memo_python_solve", self._plan, ctypes.byref(desc), _is_main())
        _call("memo_plan_validate", self._plan)
        return self

    def _column(self, field):
        buffers = self._plan[0].buffers[:self._plan[0].n_buffers]
        if not self._trace:  # memo has sorted them by begin
            buffers.sort(key=lambda buffer: buffer.id)
        values = [getattr(buffer, field) for buffer in buffers]
        if self._is_numpy:
            import numpy
            return numpy.array(values, dtype=numpy.int64)
        return values

    def _has_clocks(self):
        return not self._trace and len(self) > 0 and isinstance(self._source[0][0], tuple)

    def _times(self, field, k):
        if not self._has_clocks():
            return self._column(field)
        if self._is_numpy:
            import numpy
            return numpy.array(self._source[k], dtype=numpy.int64)
        return list(self._source[k])

    begins = property(lambda self: self._times("begin", 0))
    ends = property(lambda self: self._times("end", 1))
    sizes = property(lambda self: self._column("size_bytes"))

    @property
    def offsets(self):
        """In the order of the arguments, of the rows, or of the requests."""
        if not self.is_solved:
            raise Error("offsets: not solved yet; call solve() first", "invalid state")
        return self._column("offset_bytes")

    is_solved = property(lambda self: self._plan[0].proof > 0)
    is_optimal = property(lambda self: self._plan[0].proof == _OPTIMAL, doc="Is it proven that no plan is smaller?")
    peak = property(lambda self: self._plan[0].peak_bytes, doc="Bytes that the plan takes.")
    bound = property(lambda self: self.peak if self.is_optimal else self._plan[0].lower_bound_bytes,
                     doc="Bytes that every plan takes at least: the peak, if the plan is proven optimal.")
    engine = property(lambda self: self._plan[0].engine.decode(), doc="The engine that found the offsets.")

    def write(self, path):
        """Writes the plan for memo_plan_read."""
        _call("memo_plan_write", self._plan, os.fsencode(path))

    def write_proof(self, path):
        """Writes why no plan is smaller, for memo_plan.check_proof.check(csv, path), which shares no code with the
        planner.  False, and no file: the plan is not proven, or only by a search that is too long to write down, or has
        vector clocks, which no CSV has.
        Ctrl-C ends that search: KeyboardInterrupt is raised, and no file is written."""
        found = c_int()
        if self.is_optimal and not self._has_clocks():
            _call("memo_python_write_proof", self._plan, os.fsencode(path), _is_main(), ctypes.byref(found))
        return bool(found.value)

    def write_svg(self, path, title="plan"):
        """Draws address over time."""
        _call("memo_plan_write_svg", self._plan, self._trace, title.encode(), os.fsencode(path))

    def __len__(self):
        return self._plan[0].n_buffers

    def __repr__(self):
        if not hasattr(self, "_plan"):  # its arguments were refused
            return "<memo_plan.Plan: not made>"
        state = f"peak {self.peak}, {'optimal' if self.is_optimal else 'feasible'}" if self.is_solved else "not solved"
        return f"<memo_plan.Plan: {len(self)} buffers, bound {self.bound}, {state}>"
