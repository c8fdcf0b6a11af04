/* check.h - which configurations are valid.  Messages name a field as the trainer's option that
 * sets it. */
#ifndef GPT_CHECK_H
#define GPT_CHECK_H

#include "gpt/model/gpt.h"

#define gpt_invalid(error, ...) memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, __VA_ARGS__)

memo_status gpt_no_memory(const char* what, memo_error* error);

memo_status gpt_check_slices(const gpt_config* c, memo_error* error);

memo_status gpt_check_config(const gpt_config* config, memo_error* error);

#endif
