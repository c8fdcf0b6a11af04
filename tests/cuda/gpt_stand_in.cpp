/* gpt_stand_in.cpp - the CUDA kernels of the trainer for a machine without a GPU, to link with train_gpt.c compiled
 * with -DTRAIN_CUDA: kernels run thread by thread on the CPU, on stand-ins for CUDA, cuBLASLt and cuDNN.  With
 * -DMEMO_SP_NCCL also on one for NCCL, and with memo's implementation, since that of other tests is without NCCL. */
#include "emulated_grid.h"

#ifdef MEMO_SP_NCCL
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_LAYOUT_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#endif
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_cuda.cuh"
#include "memo_plan.h"
#include "extras/memo_layout.h"
#include "extras/memo_look.h"

#ifdef MEMO_SP_NCCL
#include "../fake_nccl.h"
#endif
#include "fake_cublaslt.h"
#include "gpt/gpt_kernels_cuda.cu"
#define ATTENTION_SAMPLES 5 /* an emulated grid is slow */
#include "gpt/gpt_cudnn.cu"
