memo profile 1
rows 65536 1 14 137970187532420 435 12527991086 1000 1000
layer 98673582604750 243687961090463
tensor stream
row -
tensor input
row -
tensor rstd1
row 0
tensor norm1
row 3891846
tensor q
row 51187744
tensor k
row 51220947
tensor v
row 48102294
tensor attention
row 963383521
tensor lse
row 0
tensor middle
row 55218016
tensor rstd2
row 0
tensor norm2
row 3915771
tensor up
row 195745356
tensor gelu
row 16521240
copy 32768 3903999925 5311999936
copy 33554432 612191975117 609535992146
file 0 0 0
end 33 12ee14c1deee57b0
