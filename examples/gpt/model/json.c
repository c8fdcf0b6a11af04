/* json.c - see json.h; empty without -DGPT_JSON. */
#include "gpt/model/gpt.h"

#ifdef GPT_JSON
#include "gpt/model/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    char* text = NULL;
    ssize_t n = -1;
    int64_t n_bytes = 0;
    cJSON* json = NULL;
    const int is_known = fd >= 0 && fstat(fd, &info) == 0;

    if (is_known && S_ISREG(info.st_mode) && info.st_size <= MOST)
        text = (char*)malloc((size_t)info.st_size + 1);
    while (text && n_bytes <= info.st_size &&
           (n = read(fd, text + n_bytes, (size_t)(info.st_size + 1 - n_bytes))) > 0)
        n_bytes += n;
    if (text && n == 0)
        json = gpt_json_parse(path, text, n_bytes, error);
    else if (is_known && (!S_ISREG(info.st_mode) || info.st_size > MOST))
        memo_error_set(error, MEMO_STATUS_FORMAT, "%.300s: not a regular file of 64 MB at most",
                       path);
    else
        memo_error_set(error, MEMO_STATUS_IO, "%.300s: cannot be read: %s", path, strerror(errno));
    free(text);
    if (fd >= 0) close(fd);
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
