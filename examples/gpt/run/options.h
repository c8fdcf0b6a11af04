/* options.h - the command line of the trainer: a table of options, their limits and defaults.
 *
 * Every mistake prints one line: the error and a value that would work. */
#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

#include <stdint.h>

#include "gpt/model/gpt.h"

typedef enum train_update {
    TRAIN_UPDATE_AUTO = 0,
    TRAIN_UPDATE_DEVICE,
    TRAIN_UPDATE_HOST,
    TRAIN_UPDATE_PASS, /* on the device, at these moments */
    TRAIN_UPDATE_DEFERRED,
    TRAIN_UPDATE_FUSED,
    TRAIN_N_UPDATES
} train_update;

typedef enum train_states {
    TRAIN_STATES_F32 = 0,
    TRAIN_STATES_BF16,
    TRAIN_STATES_PURE, /* gpt_config.is_pure from here on */
    TRAIN_STATES_8BIT,
    TRAIN_N_STATES
} train_states;

typedef struct train_options {
    char** text_files; /* n_text_files entries of argv; 0: the project's own sources */
    long long n_text_files;
    long long policy;                     /* memo_policy */
    double alpha;                         /* below 0: planned */
    long long device_memory, host_memory; /* bytes; 0: no limit */
    long long reserve;                    /* of a GPU without device_memory */
    long long link_bandwidth;             /* bytes per second and direction; 0: as fast as memory */
    double flops;              /* in a dry run: peak of a device, TFLOP/s; 0: the default */
    long long cluster;         /* in a dry run: 1 + index in clusters; 0: none */
    int has_own_link;          /* with cluster: --link-bandwidth is given, too */
    long long spill_bandwidth; /* bytes per second and direction; 0: not given */
    long long layers, hidden, heads, kv_heads, sequence, batch, accumulate, tile, mlp_rows,
        mlp_columns, slice_rows;
    long long window, documents, separator;
    long long data, tensor; /* 0: not given; train_check_ranks sets it */
    long long ring, ulysses, zero, sub_batches;
    long long ranks;        /* no option: data x ring x ulysses x tensor */
    const char* degrees;    /* a file; NULL: none */
    int32_t* block_degrees; /* the degrees in the file, of 2 x layers blocks */
    long long schedule;     /* memo_blocks_order */
    long long mlp;          /* gpt_mlp */
    long long vocabulary, is_random;
    long long type, states; /* states: train_states */
    double dropout;
    long long steps, seconds, seed; /* seconds 0: no limit */
    double learning_rate;
    double timeout;                                  /* seconds */
    const char *loss_log, *output, *spill, *profile; /* NULL: none */
    long long spill_free_bytes; /* no option: of a rank, in the folder of --spill; 0: unknown */
    const char *save, *resume;
    const char *model, *write_model, *tokens; /* NULL: none */
    gpt_config architecture; /* no option: of --model; its shape and its adapters alone */
    long long lora;          /* rank; 0: not given, as the next */
    double lora_alpha;
    const char *lora_targets, *adapter; /* NULL: not given */
    int is_known;                       /* no option: --model is a name of known.c, not a folder */
    long long takes_changes;            /* with resume */
    long long save_every, stop;         /* steps; 0: at the end only; 0: after all */
    long long compare, sample;
    long long is_deterministic, attention_memory; /* cuDNN's attention */
    long long update, clip_by;                    /* train_update, gpt_clip */
    long long states_stay; /* no option: weights, gradients and moments do not leave the device */
    long long is_graph, is_dry_run, is_demo, lists_rows, is_help, is_version;
} train_options;

#define N_POLICIES (MEMO_N_POLICIES - 1) /* all but ROWS */

/* (N_POLICIES), in the order of tables.  Those from the fourth on plan rows. */
extern const memo_policy policy_order[];
int plans_rows(long long policy);

typedef enum option_kind {
    OPTION_COUNT = 0, /* a whole number */
    OPTION_REAL,
    OPTION_SIZE, /* bytes, with a suffix */
    OPTION_RATE, /* bytes a second: the same, and "/s" may follow */
    OPTION_NAME, /* one of option_name; the first has the value low */
    OPTION_PATH,
    OPTION_FILES,
    OPTION_FLAG
} option_kind;

typedef struct train_option {
    const char* name;
    option_kind kind;
    size_t field;              /* offset in train_options */
    double low, high, initial; /* initial: of the field, if it is a number */
    const char* value;         /* name of the value in the help */
    const char* help;
} train_option;

/* Returns the option with this name; NULL: there is none. */
const train_option* option_find(const char* name);

/* Name i of an OPTION_NAME; NULL: there are fewer. */
const char* option_name(const train_option* o, int64_t i);

void train_print_help(void);

/* Bytes a second of copies to the host, or to the device; 0: as fast as memory. */
double train_link(const train_options* o, int to_device);

/* Checks that each given option has an effect.  Call it after train_check_ranks. */
memo_status train_check_effects(const train_options* o, memo_error* error);
memo_status train_parse(int argc, char** argv, train_options* options, memo_error* error);

#endif
