#include "gpt/run/model.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpt/model/known.h"
#include "gpt/model/layout.h"
#include "gpt/run/plan.h"

/* Each kind of error is a mistake of the command line. */
static memo_status train_bad_model(const memo_error* reason, memo_error* error) {
    return gpt_invalid(error, "--model %s", reason->message);
}

/* An option that config.json decides: it may be given with that value. */
static memo_status train_set_shape(train_options* o, const char* name, long long of_model,
                                   memo_error* error) {
    const train_option* option = option_find(name);
    long long* field = (long long*)(void*)((char*)o + option->field);
    const int is_heads = !strcmp(name, "--kv-heads"); /* as many as heads, if it is not given */
    const long long initial =
        is_heads ? (long long)option_find("--heads")->initial : (long long)option->initial;
    if (*field != initial && *field != of_model)
        return gpt_invalid(error, "%s %lld: the model of --model has %lld; without %s it works",
                           name, *field, of_model, name);
    *field = of_model;
    return MEMO_STATUS_OK;
}

/* A folder comes before a name. */
static memo_status train_read_model(train_options* o, gpt_model_file* file, memo_error* error) {
    memo_error reason;
    o->is_known = access(o->model, F_OK) && gpt_known_config(o->model, &o->architecture);
    if (o->is_known && !o->is_dry_run)
        return gpt_invalid(error,
                           "--model %s: a name has a shape and no weights; --dry-run, or a folder "
                           "with its weights, would work",
                           o->model);
    if (o->is_known || !gpt_read_config(o->model, &o->architecture, file, &reason))
        return MEMO_STATUS_OK;
    if (!o->is_dry_run || access(o->model, F_OK) == 0) return train_bad_model(&reason, error);
    return gpt_invalid(error, "--model %.300s: no such folder; of names " GPT_KNOWN_NAMES " work",
                       o->model);
}

memo_status train_take_model(train_options* o, memo_error* error) {
    gpt_config* c = &o->architecture;
    gpt_model_file file = {GPT_FAMILY_LLAMA, -1};
    if (!o->model) return MEMO_STATUS_OK;
    if (train_read_model(o, &file, error)) return error->status;
    const struct {
        const char* name;
        long long value;
    } shape[] = {{"--kv-heads", c->n_kv_heads},     {"--layers", c->n_layers},
                 {"--hidden", c->hidden},           {"--heads", c->n_heads},
                 {"--mlp-columns", c->mlp_columns}, {"--mlp", (long long)c->mlp},
                 {"--vocabulary", c->vocabulary}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        if (train_set_shape(o, shape[i].name, shape[i].value, error)) return error->status;
    if (o->documents && o->separator == 10 && file.end_token >= 0) o->separator = file.end_token;
    return MEMO_STATUS_OK;
}

memo_status train_open_weights(const train_options* o, gpt_stored* stored, memo_error* error) {
    const gpt_config config = train_config(o);
    memo_error reason;
    if (!o->model) return MEMO_STATUS_OK;
    if (gpt_stored_open(o->model, stored, &reason) || gpt_check_weights(&config, stored, &reason))
        return train_bad_model(&reason, error);
    return MEMO_STATUS_OK;
}

char* train_config_text(const train_options* o, memo_error* error) {
    const gpt_config config = train_config(o);
    memo_error reason;
    char* text = gpt_config_text(o->model, &config, &reason);
    if (!text) (void)gpt_invalid(error, "--write-model %s", reason.message);
    return text;
}
