/* gpt_stand_in.cpp - the CUDA kernels of the trainer for a machine without a GPU, to link with train_gpt.c compiled
 * with -DTRAIN_CUDA: kernels run thread by thread on the CPU, on stand-ins for CUDA, cuBLASLt and cuDNN. */
#include "emulated_grid.h"

#define MEMO_CUDA_IMPLEMENTATION
#include "memo_cuda.cuh"

#include "fake_cublaslt.h"
#include "gpt/gpt_kernels_cuda.cu"
#include "gpt/gpt_cudnn.cu"
