/* gpt_stand_in.cpp - the CUDA kernels of the trainer for a machine without a GPU, to link with
 * the trainer compiled with -DTRAIN_CUDA and gpt/memo.c: kernels run thread by thread on the CPU,
 * on stand-ins for CUDA, cuBLASLt and cuDNN.  With -DMEMO_CUDA_NCCL also on one for NCCL. */
#define MEMO_TEST_OWN_MAIN
#include "emulated_grid.h"

#define MEMO_CUDA_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_cuda.cuh"
#include "memo_plan.h"

#ifdef MEMO_CUDA_NCCL
#include "fake_nccl.h"
#endif
#include "fake_cublaslt.h"
#include "gpt/kernels/cuda.cu"
#define ATTENTION_SAMPLES 5 /* an emulated grid is slow */
#include "gpt/kernels/cudnn.cu"
