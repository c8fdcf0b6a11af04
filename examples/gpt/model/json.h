/* json.h - values of a JSON text, by cJSON: files of models.  With -DGPT_JSON. */
#ifndef GPT_JSON_H
#define GPT_JSON_H

#include <cJSON.h>

#include "gpt/model/gpt.h"

/* Parses a text that is one object; blanks may surround it.  Returns NULL after an error, which
 * names `path`.  Free the object with cJSON_Delete. */
cJSON* gpt_json_parse(const char* path, const char* text, int64_t n_bytes, memo_error* error);
/* The same of a file, of 64 MB at most. */
cJSON* gpt_json_read(const char* path, memo_error* error);

/* The member with this name, letter by letter; NULL: none, or no object. */
const cJSON* gpt_json_find(const cJSON* object, const char* name);

/* Returns whether an item is a whole number from 0 to 2^53, and the number. */
int gpt_json_whole(const cJSON* item, int64_t* number);

#endif
