#include "gpt/run/model.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpt/model/adapter.h"
#include "gpt/model/known.h"
#include "gpt/model/lora.h"
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

/* What --adapter has may be given too. */
static memo_status train_take_adapter(train_options* o, memo_error* error) {
    gpt_lora* lora = &o->architecture.lora;
    memo_error reason;
    if (gpt_read_adapter(o->adapter, lora, &reason))
        return gpt_invalid(error, "--adapter %s", reason.message);
    if (o->lora && o->lora != lora->rank)
        return gpt_invalid(error,
                           "--lora %lld: the adapters of --adapter have rank %d; without --lora it "
                           "works",
                           o->lora, lora->rank);
    if (o->lora_alpha > 0 && (o->lora_alpha < lora->alpha || o->lora_alpha > lora->alpha))
        return gpt_invalid(error,
                           "--lora-alpha %g: the adapters of --adapter have %g; without "
                           "--lora-alpha it works",
                           o->lora_alpha, lora->alpha);
    if (o->lora_targets && gpt_lora_parse(o->lora_targets) != lora->targets)
        return gpt_invalid(error,
                           "--lora-targets %.80s: the adapters of --adapter have others; without "
                           "--lora-targets it works",
                           o->lora_targets);
    return MEMO_STATUS_OK;
}

static memo_status train_take_lora(train_options* o, memo_error* error) {
    gpt_lora* lora = &o->architecture.lora;
    if (o->adapter) return train_take_adapter(o, error);
    if (!o->lora) return MEMO_STATUS_OK;
    lora->rank = (int32_t)o->lora;
    lora->alpha = o->lora_alpha > 0 ? o->lora_alpha : 2 * (double)o->lora;
    lora->targets = gpt_lora_parse(o->lora_targets ? o->lora_targets : "all");
    if (lora->targets) return MEMO_STATUS_OK;
    return gpt_invalid(error,
                       "--lora-targets %.80s: names of q, k, v, o, gate, up and down, such "
                       "as q,v, or all, would work",
                       o->lora_targets);
}

memo_status train_take_model(train_options* o, memo_error* error) {
    gpt_config* c = &o->architecture;
    gpt_model_file file = {GPT_FAMILY_LLAMA, -1};
    if (!o->model) return MEMO_STATUS_OK;
    if (train_read_model(o, &file, error) || train_take_lora(o, error)) return error->status;
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

memo_status train_open_weights(const train_options* o, gpt_stored* stored, gpt_stored* adapter,
                               memo_error* error) {
    const gpt_config config = train_config(o), base = gpt_base_config(&config);
    memo_error reason;
    if (!o->model) return MEMO_STATUS_OK;
    if (gpt_stored_open(o->model, stored, &reason) || gpt_check_weights(&base, stored, &reason))
        return train_bad_model(&reason, error);
    if (o->adapter &&
        (gpt_stored_open_file(o->adapter, gpt_weight_files_of(&config).weights, adapter, &reason) ||
         gpt_check_weights(&config, adapter, &reason)))
        return gpt_invalid(error, "--adapter %s", reason.message);
    return MEMO_STATUS_OK;
}

char* train_config_text(const train_options* o, memo_error* error) {
    const gpt_config config = train_config(o);
    memo_error reason;
    char* text = config.lora.rank ? gpt_adapter_text(&config.lora, o->model, &reason)
                                  : gpt_config_text(o->model, &config, &reason);
    if (!text) (void)gpt_invalid(error, "--write-model %s", reason.message);
    return text;
}
