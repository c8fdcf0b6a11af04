/* model.h - a model that others have: its config.json as options, its weights, the folder that a
 * run writes. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "gpt/model/weights.h"
#include "gpt/run/options.h"

/* Sets the adapters of --lora or --adapter, and the options of the model's shape from the config.json of --model, in a dry run also from a
 * name; refuses others that are given.  Does nothing without --model. */
memo_status train_take_model(train_options* options, memo_error* error);

/* Opens and checks the files of --model, and of --adapter; a dry run needs none. */
memo_status train_open_weights(const train_options* options, gpt_stored* stored,
                               gpt_stored* adapter, memo_error* error);

/* Returns what config.json, or adapter_config.json, of --write-model will be: free it with free.  NULL after an error. */
char* train_config_text(const train_options* options, memo_error* error);

#endif
