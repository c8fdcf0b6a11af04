/* gpt_model_unit.h - the trainer's model and its kernels on the host in one translation unit, so that
 * tests see private functions. */
#include "gpt/kernels/threads.c"
#include "gpt/kernels/host.c"
#include "gpt/model/layout.c"
#include "gpt/model/check.c"
#include "gpt/model/enqueue.c"
#include "gpt/model/layer.c"
#include "gpt/model/parallel.c"
#include "gpt/model/tensor.c"
#include "gpt/model/model.c"
#include "gpt/model/checkpoint.c"
#include "gpt/model/generate.c"
