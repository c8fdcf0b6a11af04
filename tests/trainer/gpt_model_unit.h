/* gpt_model_unit.h - the trainer's model and its kernels on the host in one translation unit, so that
 * tests see private functions. */
#include "gpt/kernels/threads.c"
#include "gpt/kernels/host.c"
#include "gpt/model/layout.c"
#include "gpt/model/lora.c"
#include "gpt/model/check.c"
#include "gpt/model/enqueue.c"
#include "gpt/model/experts.c"
#include "gpt/model/layer.c"
#include "gpt/model/parallel.c"
#include "gpt/model/tensor.c"
#include "gpt/model/model.c"
#include "gpt/model/checkpoint.c"
#include "gpt/model/generate.c"
#include "gpt/model/mapped.c"
#include "gpt/model/json.c"
#include "gpt/model/safetensors.c"
#include "gpt/model/adapter.c"
#include "gpt/model/config.c"
#include "gpt/model/known.c"
#include "gpt/model/weights.c"

#ifdef GPT_BLAS /* the library is linked, not loaded */
__attribute__((constructor)) static void gpt_link_blas(void) { gpt_blas_gemm = cblas_sgemm; }
#endif
