/* known.h - shapes of models by name, for dry runs without config.json. */
#ifndef GPT_KNOWN_H
#define GPT_KNOWN_H

#include "gpt/model/config.h"

#define GPT_KNOWN_NAMES                                                                            \
    "llama2-7b, llama3-8b, llama3-70b, llama3.2-1b, llama3.2-3b, qwen2.5-7b, qwen2.5-32b, "        \
    "qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-32b or qwen3-30b-a3b"

/* Sets what a plan depends on, of the fields of gpt_read_config: all but norm_epsilon and rope.
 * Returns whether the name is known. */
int gpt_known_config(const char* name, gpt_config* config);

#endif
