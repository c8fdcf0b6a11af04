/* adapter.h - the file adapter_config.json of adapters, as the library peft writes it.
 *
 * Fields that change what adapters compute are read, or refused by name; others are ignored. */
#ifndef GPT_ADAPTER_H
#define GPT_ADAPTER_H

#include "gpt/model/gpt.h"

/* Reads FOLDER/adapter_config.json.  Errors: IO, FORMAT, UNSUPPORTED (with the field; or the program
 * has no cJSON). */
memo_status gpt_read_adapter(const char* folder, gpt_lora* lora, memo_error* error);

/* The text of adapter_config.json.  model: the folder of the frozen weights.  Free it with free.
 * Returns NULL after an error. */
char* gpt_adapter_text(const gpt_lora* lora, const char* model, memo_error* error);

#endif
