/* gpt_trainer_unit.h - the trainer in one translation unit: tests see private functions, and put a device
 * around its own. */
#define main train_gpt_main
#include "gpt_model_unit.h"
#include "gpt/show/statistics.c"
#include "gpt/show/report.c"
#include "gpt/show/picture.c"
#include "gpt/run/options.c"
#include "gpt/run/device.c"
#include "gpt/run/plan.c"
#include "gpt/run/model.c"
#include "gpt/run/text.c"
#include "gpt/run/ranks.c"
#include "gpt/run/run.c"
#include "gpt/run/compare.c"
#include "gpt/run/profile.c"
#include "gpt/run/refuse.c"
#include "gpt/run/files.c"
#include "gpt/run/loop.c"
#include "gpt/run/main.c"
#undef main
