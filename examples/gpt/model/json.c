/* json.c - see json.h; empty without -DGPT_JSON. */
#include "gpt/model/gpt.h"

#ifdef GPT_JSON
#include "gpt/model/json.h"
#include "gpt/model/mapped.h"

#include <math.h>
#include <string.h>

static int gpt_json_is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* cJSON has the last of two members with one name, or the first: a text with both says nothing. */
static const char* gpt_json_doubled(const cJSON* object) {
    const cJSON *a, *b;
    if (cJSON_GetArraySize(object) > 1000) return NULL; /* of tensors: compared after sorting */
    cJSON_ArrayForEach(a, object) {
        for (b = a->next; b; b = b->next)
            if (!strcmp(a->string, b->string)) return a->string;
    }
    return NULL;
}

cJSON* gpt_json_parse(const char* path, const char* text, int64_t n_bytes, memo_error* error) {
    const char *end = NULL, *doubled = NULL, *fault = NULL;
    cJSON* json = cJSON_ParseWithLengthOpts(text, (size_t)n_bytes, &end, 0);
    while (json && end < text + n_bytes && gpt_json_is_blank(*end)) end++;
    if (!json)
        fault = "not JSON";
    else if (end != text + n_bytes)
        fault = "text follows its JSON";
    else if (!cJSON_IsObject(json))
        fault = "its JSON is no object";
    else
        doubled = gpt_json_doubled(json);
    if (doubled) fault = "its JSON has a name twice";
    if (!fault) return json;
    memo_error_set(error, MEMO_STATUS_FORMAT, "%.300s: %s", path, fault);
    cJSON_Delete(json);
    return NULL;
}

cJSON* gpt_json_read(const char* path, memo_error* error) {
    enum { MOST = 64 << 20 };
    gpt_mapped file;
    const char* why = gpt_map(path, &file);
    cJSON* json = NULL;
    if (why == gpt_not_regular || file.n_bytes > MOST)
        memo_error_set(error, MEMO_STATUS_FORMAT, "%.300s: not a regular file of 64 MB at most",
                       path);
    else if (why)
        memo_error_set(error, MEMO_STATUS_IO, "%.300s: cannot be read: %s", path, why);
    else
        json = gpt_json_parse(path, (const char*)file.bytes, file.n_bytes, error);
    gpt_unmap(&file);
    return json;
}

const cJSON* gpt_json_find(const cJSON* object, const char* name) {
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, name) : NULL;
}

int gpt_json_whole(const cJSON* item, int64_t* number) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 0x1p53) ||
        floor(item->valuedouble) < item->valuedouble)
        return 0;
    *number = (int64_t)item->valuedouble;
    return 1;
}
#endif
