#include "gpt/run/options.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "gpt/model/known.h"
#include "tools/clusters.h"

const memo_policy policy_order[] = {MEMO_POLICY_KEEP, MEMO_POLICY_RECOMPUTE, MEMO_POLICY_SWAP,
                                    MEMO_POLICY_ALPHA, MEMO_POLICY_MEMO};
MEMOB_TABLE_OF(MEMO_N_POLICIES - 1, policy_order); /* all but ROWS */

int plans_rows(long long policy) {
    return policy == MEMO_POLICY_ALPHA || policy == MEMO_POLICY_MEMO;
}

#define OPTION_FIELD(name) offsetof(train_options, name)
#ifdef TRAIN_CUDA
#define OPTION_IS_GPU 1
#else
#define OPTION_IS_GPU 0
#endif
static const train_option option_table[] = {
    {"--text", OPTION_FILES, OPTION_FIELD(text_files), 0, 0, 0, "FILE...",
     "learns from these bytes, one file after another (default: the project's own sources)"},
    {"--tokens", OPTION_PATH, OPTION_FIELD(tokens), 0, 0, 0, "FILE",
     "learns from these tokens instead of a text: numbers of 2 bytes in FILE.u16, or of 4 bytes in "
     "FILE.u32, the lowest byte first, below --vocabulary.  examples/tools/tokens.py makes it"},
    {"--random-tokens", OPTION_FLAG, OPTION_FIELD(is_random), 0, 0, 0, "",
     "learns from random tokens instead of a text"},
    {"--vocabulary", OPTION_COUNT, OPTION_FIELD(vocabulary), 2, 16777216, 256, "N",
     "number of different tokens; a text has 256, its bytes"},
    {"--policy", OPTION_NAME, OPTION_FIELD(policy), 0, 0, MEMO_POLICY_MEMO, "NAME",
     "how activations reach the backward\n"
     "keep: all stay on the device\n"
     "recompute: the inputs of layers stay; the rest is recomputed\n"
     "swap: all rows move to the host and back\n"
     "alpha: inputs, attention and one planned fraction of the other rows move to the host; the "
     "rest is recomputed\n"
     "memo (default): a plan for each tensor of each layer, which rows are kept, swapped and "
     "recomputed"},
    {"--alpha", OPTION_REAL, OPTION_FIELD(alpha), 0, 1, -1, "X",
     "fraction of the rows that policies alpha and memo swap, 0 to 1, rounded to tiles (default: "
     "planned)"},
    {"--device-memory", OPTION_SIZE, OPTION_FIELD(device_memory), 1, 1e18, 0, "SIZE",
     "capacity of a rank's device.  Weights, gradients and moments that it cannot hold lie on the "
     "host and come layer by layer, with the same bits (default: no limit; on a GPU what is left "
     "beside libraries and --reserve)"},
#ifdef TRAIN_CUDA
    {"--reserve", OPTION_SIZE, OPTION_FIELD(reserve), 0, 1e18, 512 << 20, "SIZE",
     "device memory to leave free beside what libraries hold, without --device-memory (default "
     "512MiB)"},
#endif
    {"--host-memory", OPTION_SIZE, OPTION_FIELD(host_memory), 1, 1e18, 0, "SIZE",
     "capacity for swapped rows, weights, gradients and moments (default: no limit)"},
    {"--link-bandwidth", OPTION_RATE, OPTION_FIELD(link_bandwidth), 1000, 1e18, 0, "RATE",
     "bytes that copies move in a second, each way, 1KB/s or more (default: as fast as memory)"},
    {"--flops", OPTION_REAL, OPTION_FIELD(flops), 1e-6, 1e9, 0, "TFLOPS",
     "peak of a rank's device.  A run prints its MFU.  A dry run assumes that products reach 0.75 "
     "of it, attention 0.6, and its backward 0.55; of h100, h200 and gh200 it takes fractions that "
     "were "
     "measured on an H200 with 16K to 128K keys in sight, and beyond those of the nearest (default "
     "of a dry run: 312)"},
    {"--cluster", OPTION_NAME, OPTION_FIELD(cluster), 1, 0, 0, "NAME",
     "takes --flops, --link-bandwidth, --device-memory and --host-memory, its share of the node, "
     "of a dry run from this GPU: a800, a100, h100, h200, b200, gh200, gb200, gb10, rtx4080, "
     "rtx4090, rtx5080, rtx5090 or 3090-pcie.  Plans are those of the program for GPUs, with "
     "cuDNN's attention.  With --profile its times take the place of the GPU's"},
    {"--profile", OPTION_PATH, OPTION_FIELD(profile), 0, 0, 0, "FILE",
     "plans with these times of a layer and of copies, which --output writes.  They must be of the "
     "same model on the same device: the file has rows and names of tensors, which are compared, "
     "but no width and no --type (default: a run measures them, a dry run estimates them)"},
    {"--spill", OPTION_PATH, OPTION_FIELD(spill), 0, 0, 0, "DIR",
     "moves what exceeds --host-memory to an unnamed file in this folder"},
    {"--spill-bandwidth", OPTION_RATE, OPTION_FIELD(spill_bandwidth), 1000, 1e18, 0, "RATE",
     "bytes that the file of --spill moves in a second, each way, 1KB/s or more: in a dry run its "
     "rate, in a run a limit (default: a run measures it; a dry run needs it, or a --profile that "
     "has it)"},
    {"--model", OPTION_PATH, OPTION_FIELD(model), 0, 0, 0, "DIR",
     "begins with the weights of this folder, config.json and *.safetensors of a Llama 2 or 3, a "
     "Qwen2 or a Qwen3, as transformers writes it; learns from --tokens.  docs/models.md says what "
     "is supported.  A dry run needs config.json alone, or takes a NAME instead of the "
     "folder: " GPT_KNOWN_NAMES},
    {"--write-model", OPTION_PATH, OPTION_FIELD(write_model), 0, 0, 0, "DIR",
     "writes config.json and model.safetensors, of --type, to this folder at the end, also after "
     "Ctrl-C, for "
     "transformers and others; with --model or --mlp swiglu.  With --lora: adapters"},
    {"--lora", OPTION_COUNT, OPTION_FIELD(lora), 1, 65536, 0, "RANK",
     "trains adapters (LoRA) of this rank beside the weights of --model, which stay as they are, "
     "in "
     "their files: gradients and moments are of adapters alone.  --write-model then writes "
     "adapter_config.json and adapter_model.safetensors, for peft"},
    {"--lora-alpha", OPTION_REAL, OPTION_FIELD(lora_alpha), 1e-6, 1e6, 0, "X",
     "an adapter adds alpha / rank (x A^T) B^T to a product (default: 2 x rank)"},
    {"--lora-targets", OPTION_PATH, OPTION_FIELD(lora_targets), 0, 0, 0, "LIST",
     "the products that have adapters, such as q,v: of q, k, v, o, gate, up, down; or all "
     "(default)"},
    {"--adapter", OPTION_PATH, OPTION_FIELD(adapter), 0, 0, 0, "DIR",
     "begins with the adapters of this folder, as --write-model or peft writes them, instead of "
     "--lora; moments begin at zero"},
    {"--layers", OPTION_COUNT, OPTION_FIELD(layers), 1, 4096, 10, "N", "layers"},
    {"--hidden", OPTION_COUNT, OPTION_FIELD(hidden), 2, 65536, 96, "N", "width of a token"},
    {"--heads", OPTION_COUNT, OPTION_FIELD(heads), 1, 4096, 4, "N", "attention heads"},
    {"--kv-heads", OPTION_COUNT, OPTION_FIELD(kv_heads), 1, 4096, 0, "N",
     "key and value heads (default: as many as heads)"},
    {"--mlp", OPTION_NAME, OPTION_FIELD(mlp), 0, 0, 0, "NAME",
     "gelu, or swiglu: the MLP has a second product, a gate, before its activation"},
    {"--mlp-columns", OPTION_COUNT, OPTION_FIELD(mlp_columns), 1, 1048576, 0, "N",
     "width of the MLP (default: 4 x hidden)"},
    {"--seq", OPTION_COUNT, OPTION_FIELD(sequence), 1, 16777216, 512, "N", "tokens of a sequence"},
    {"--window", OPTION_COUNT, OPTION_FIELD(window), 1, 16777216, 0, "N",
     "a token attends to the last N tokens, itself included (default: all before it)"},
    {"--documents", OPTION_COUNT, OPTION_FIELD(documents), 1, 1048576, 0, "N",
     "packs at most N documents in a sequence; attention stays within each (default: a sequence is "
     "one)"},
    {"--separator", OPTION_COUNT, OPTION_FIELD(separator), 0, 16777215, 10, "TOKEN",
     "ends a document; of a text a byte, and 10 ends a line"},
    {"--batch", OPTION_COUNT, OPTION_FIELD(batch), 1, 4096, 3, "N", "sequences of a micro-batch"},
    {"--accumulate", OPTION_COUNT, OPTION_FIELD(accumulate), 1, 65536, 1, "N",
     "micro-batches of a step"},
    {"--tile", OPTION_COUNT, OPTION_FIELD(tile), 1, 65536, 0, "N",
     "tokens of one matrix product; plans are rounded to tiles (default 64; on a GPU and with "
     "--cluster 1024)"},
    {"--mlp-rows", OPTION_COUNT, OPTION_FIELD(mlp_rows), 1, 268435456, 0, "N",
     "computes the MLP N tokens at a time, in both passes.  Its tensors then take memory for N "
     "tokens, and no policy keeps or swaps them.  Gradients match other N up to rounding (default: "
     "all tokens at once)"},
    {"--slice-rows", OPTION_COUNT, OPTION_FIELD(slice_rows), 0, 268435456, 0, "N",
     "computes each layer N tokens at a time, whole tiles; device memory then hardly grows with "
     "the length.  Gradients match other N up to rounding.  The host holds what passes from layer "
     "to layer, keys and values.  0 (default): all tokens at once or, if that does not fit, the "
     "largest slices of 1024 tokens or more that do, or with --deterministic 0 faster smaller "
     "ones"},
    {"--timeout", OPTION_REAL, OPTION_FIELD(timeout), 1, 1e6, 600, "SECONDS",
     "how long a rank waits for another before the run ends with an error that names it; more than "
     "one rank may lag behind, such as while it writes a checkpoint"},
    {"--data", OPTION_COUNT, OPTION_FIELD(data), 1, 64, 0, "N",
     "ranks that split the batch, each a thread, or a process (MPI, NCCL), with its own device "
     "(default: the processes that the other degrees leave, or 1)"},
    {"--ring", OPTION_COUNT, OPTION_FIELD(ring), 1, 64, 1, "N",
     "ranks that split each sequence; keys and values pass from rank to rank"},
    {"--ulysses", OPTION_COUNT, OPTION_FIELD(ulysses), 1, 64, 1, "N",
     "ranks that split each sequence and, during attention, the heads"},
    {"--tensor", OPTION_COUNT, OPTION_FIELD(tensor), 1, 64, 0, "N",
     "ranks that split each layer by heads and by columns of the MLP (default: the largest of "
     "--degrees, or 1)"},
    {"--degrees", OPTION_PATH, OPTION_FIELD(degrees), 0, 0, 0, "FILE",
     "number of tensor ranks of each block, attention and MLP in turn; degrees_plan writes it.  "
     "Its text: a line `block NUMBER DEGREE` for each, such as `block 0 2`"},
    {"--sub-batches", OPTION_COUNT, OPTION_FIELD(sub_batches), 1, 64, 1, "N",
     "parts of a rank's micro-batch.  Sums of one part overlap the computation of another"},
    {"--schedule", OPTION_NAME, OPTION_FIELD(schedule), 0, 0, 0, "NAME",
     "order of the sub-batches\n"
     "default: one operation after another (default)\n"
     "pipelined: sums over tensor ranks overlap other sub-batches, within each pass\n"
     "cross: recomputation also overlaps the backward\n"
     "fine: as cross, and recomputation needs no sums.  The output of attention, middle, is kept "
     "or swapped; the other schedules repeat its sum for recomputed rows"},
    {"--zero", OPTION_COUNT, OPTION_FIELD(zero), 0, 2, 0, "N",
     "0 (default): every data, ring and Ulysses rank has the whole optimizer\n"
     "1: they split Adam's moments and the master weights\n"
     "2: they also split the gradient"},
    {"--type", OPTION_NAME, OPTION_FIELD(type), 0, 0, -1, "NAME",
     "f32 (default on a CPU)\n"
     "bf16 (default on a GPU and with --cluster): activations and weights are bf16; master weights "
     "and sums are fp32"},
    {"--states", OPTION_NAME, OPTION_FIELD(states), 0, 0, 0, "NAME",
     "weights, gradients and Adam's moments of a parameter\n"
     "f32 (default): moments, gradients and master weights are fp32; with weights in bf16 18 "
     "bytes\n"
     "bf16: moments are bf16, rounded at random so that they keep their mean; 14 bytes\n"
     "pure-bf16: gradients are bf16, too, and there are no master weights: weights in bf16 are "
     "rounded at random; 8 bytes.  Not with adapters\n"
     "8bit: as pure-bf16, and moments have 8 bits and a scale for 256 of them; 6 bytes.  Not with "
     "adapters nor --tensor"},
    {"--update", OPTION_NAME, OPTION_FIELD(update), 0, 0, MEMO_UPDATE_PLANNED, "NAME",
     "where and when AdamW runs, with the same bits\n"
     "auto (default): if states leave the device, as the step is shorter: as one of the others\n"
     "device: moments and master weights come to the device; as `pass` or `deferred`\n"
     "host: they stay there, and threads update a layer while the device computes.  Not with "
     "--zero, nor on GPUs\n"
     "pass: on the device, behind the backward of all layers\n"
     "deferred: on the device, each layer right before its next forward, so that its states travel "
     "while other layers compute.  Not with --graph\n"
     "fused: on the device, in the last backward of each layer, so that nothing travels for the "
     "update alone.  Needs --clip-by layer or before; not with --graph nor --compare"},
    {"--clip-by", OPTION_NAME, OPTION_FIELD(clip_by), 0, 0, GPT_CLIP_STEP, "NAME",
     "the norm that limits a gradient; each is another training, with the same bits for every "
     "--update\n"
     "step (default): of the whole gradient of this step, to 1\n"
     "layer: of each layer alone, embedding and classifier included, to 1 / sqrt(their number), so "
     "that all together have at most 1\n"
     "before: the gradient of a step by the norm of the step before; the first has no limit"},
    {"--dropout", OPTION_REAL, OPTION_FIELD(dropout), 0, 0.95, 0, "P", "probability, 0 to 0.95"},
    {"--steps", OPTION_COUNT, OPTION_FIELD(steps), 1, 1e9, 400, "N", "training steps"},
    {"--seconds", OPTION_COUNT, OPTION_FIELD(seconds), 1, 1e9, 0, "N",
     "measures a step first, and takes fewer steps if the run would last longer"},
    {"--seed", OPTION_COUNT, OPTION_FIELD(seed), 0, 9e15, 1, "N",
     "seed of the parameters, of dropout and of the data"},
    {"--learning-rate", OPTION_REAL, OPTION_FIELD(learning_rate), 0, 1, 0.003, "X",
     "largest rate of the cosine schedule"},
    {"--save", OPTION_PATH, OPTION_FIELD(save), 0, 0, 0, "FILE",
     "saves parameters, moments and step to this file at the end, also after Ctrl-C or another "
     "signal to end.  The measured times, from which the plan follows, are saved beside it as "
     "FILE.profile.  FILE.lock keeps other runs away"},
    {"--save-every", OPTION_COUNT, OPTION_FIELD(save_every), 1, 1e9, 0, "N",
     "also saves after every N steps (default: only at the end)"},
    {"--resume", OPTION_PATH, OPTION_FIELD(resume), 0, 0, 0, "FILE",
     "continues the run that was saved, with the bits of a run without a pause if the ranks, "
     "slices, --mlp-rows and --sub-batches are the same, under any policy.  With others, losses "
     "match up to rounding.  A --loss-log that is there is continued"},
    {"--resume-with-changes", OPTION_FLAG, OPTION_FIELD(takes_changes), 0, 0, 0, "",
     "--resume takes another text and other --steps, --learning-rate, --seq, --batch, "
     "--accumulate, --dropout, --window, --documents, --separator or --tile than the saved run "
     "had"},
    {"--stop", OPTION_COUNT, OPTION_FIELD(stop), 1, 1e9, 0, "N",
     "ends after step N of --steps, to be resumed (default: after the last)"},
    {"--loss-log", OPTION_PATH, OPTION_FIELD(loss_log), 0, 0, 0, "FILE",
     "writes a line a step: the step, and its loss in decimal and in hexadecimal (nats per token)"},
    {"--output", OPTION_PATH, OPTION_FIELD(output), 0, 0, 0, "DIR",
     "writes pictures, timelines, trace and plan to this folder, and step.profile if the run has "
     "times: a plan in which everything is kept needs none"},
    {"--compare", OPTION_COUNT, OPTION_FIELD(compare), 0, 1e6, 0, "N",
     "first runs N steps under every policy, by turns.  The exit status is 1 unless all are "
     "bitwise equal"},
    {"--graph", OPTION_FLAG, OPTION_FIELD(is_graph), 0, 0, 0, "",
     "on a GPU: trains by a CUDA graph.  The first step runs call by call, the second is captured, "
     "and each later one replays it, with the same bits and one call of the host.  Weights, "
     "gradients and moments stay on the device"},
    {"--sample", OPTION_COUNT, OPTION_FIELD(sample), 0, 1e6, 0, "N",
     "generates N bytes after training"},
    {"--deterministic", OPTION_COUNT, OPTION_FIELD(is_deterministic), 0, 1, 1, "N",
     "1: a run has the same bits each time; 0: cuDNN's gradients are faster, and slices, where all "
     "rows at once do not fit, are halved before the run as long as that makes attention faster, "
     "up to three times"},
    {"--attention-memory", OPTION_SIZE, OPTION_FIELD(attention_memory), 1, 1e18, 0, "SIZE",
     "scratch memory of cuDNN's attention (default: what it is expected to need, in groups of "
     "heads from 2 GiB on).  Both also for a dry run with --cluster"},
    {"--rows", OPTION_FLAG, OPTION_FIELD(lists_rows), 0, 0, 0, "",
     "also prints which rows of each tensor are kept, swapped and recomputed, layer by layer"},
    {"--dry-run", OPTION_FLAG, OPTION_FIELD(is_dry_run), 0, 0, 0, "",
     "plans every policy, and neither allocates nor trains.  The exit status is 2 if the run does "
     "not fit"},
    {"--demo", OPTION_FLAG, OPTION_FIELD(is_demo), 0, 0, 0, "",
     "runs the demonstration of `make run`"},
    {"--help", OPTION_FLAG, OPTION_FIELD(is_help), 0, 0, 0, "", "prints this text; also -h"},
    {"--version", OPTION_FLAG, OPTION_FIELD(is_version), 0, 0, 0, "", "prints the version of memo"},
};
#define N_OPTIONS (sizeof option_table / sizeof option_table[0])

/* The default model in a third of the device memory that keeping every activation takes.
 * Recomputing all would fit, swapping all would not: host memory holds a quarter of the rows. */
static char* demo_arguments[] = {
#ifdef TRAIN_CUDA /* bf16 needs less, and libraries take memory; copies run as fast as they do */
#ifdef TRAIN_CUDNN
    "--device-memory", "76MiB", "--host-memory", "16MiB", "--tile",   "64",
#else
    "--device-memory", "60MiB", "--host-memory", "16MiB", "--tile",   "64",
#endif
#else
    "--device-memory", "37MiB",    "--host-memory", "16MiB", "--link-bandwidth", "1GB",
#endif
    "--policy",        "memo",  "--dropout",     "0.02",  "--steps",  "400",      "--seconds", "60",
    "--compare",       "20",    "--sample",      "240",   "--output", "build/run"};
#define N_DEMO_ARGUMENTS ((int)(sizeof demo_arguments / sizeof demo_arguments[0]))

/* The field of an option: a long long, a double or a text. */
static void* option_field(train_options* options, const train_option* o) {
    return (char*)options + o->field;
}

const char* option_name(const train_option* o, int64_t i) {
    static const char *const types[] = {"f32", "bf16"},
                             *const states[] = {"f32", "bf16", "pure-bf16", "8bit"},
                             *const mlps[] = {"gelu", "swiglu"};
    static const char *const updates[] = {"auto", "device", "host", "pass", "deferred", "fused"},
                             *const clips[] = {"step", "layer", "before"};
    MEMOB_TABLE_OF(GPT_N_MLPS, mlps);
    MEMOB_TABLE_OF(TRAIN_N_UPDATES, updates);
    MEMOB_TABLE_OF(GPT_N_CLIPS, clips);
    MEMOB_TABLE_OF(TRAIN_N_STATES, states);
    if (o->field == OPTION_FIELD(policy))
        return i < N_POLICIES ? memo_policy_name(policy_order[i]) : NULL;
    if (o->field == OPTION_FIELD(cluster)) return i < N_CLUSTERS ? clusters[i].name : NULL;
    if (o->field == OPTION_FIELD(schedule))
        return i < MEMO_N_BLOCKS_ORDERS ? memo_blocks_order_name((memo_blocks_order)i) : NULL;
    if (o->field == OPTION_FIELD(mlp)) return i < GPT_N_MLPS ? mlps[i] : NULL;
    if (o->field == OPTION_FIELD(update)) return i < TRAIN_N_UPDATES ? updates[i] : NULL;
    if (o->field == OPTION_FIELD(states)) return i < TRAIN_N_STATES ? states[i] : NULL;
    if (o->field == OPTION_FIELD(clip_by)) return i < GPT_N_CLIPS ? clips[i] : NULL;
    return i < 2 ? types[i] : NULL;
}

static train_options train_options_default(void) {
    train_options options = {0};
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const train_option* o = &option_table[i];
        if (o->kind == OPTION_REAL)
            *(double*)option_field(&options, o) = o->initial;
        else if (o->kind != OPTION_PATH && o->kind != OPTION_FILES)
            *(long long*)option_field(&options, o) = (long long)o->initial;
    }
    return options;
}

/* Unless the help states it. */
static void option_put_default(const train_option* o, memo_text* text) {
    if (strstr(o->help, "(default") || o->initial < o->low) return;
    if (o->kind == OPTION_COUNT || o->kind == OPTION_REAL)
        memo_text_put(text, " (default %g)", o->initial);
    else if (o->kind == OPTION_NAME)
        memo_text_put(text, " (default %s)", option_name(o, (int64_t)(o->initial - o->low)));
}

enum { HELP_INDENT = 25, HELP_WIDTH = 92 };

/* Prints lines that begin at HELP_INDENT and break between words.  The cursor is at `column`. */
static void print_words(const char* text, int column) {
    int hang = 0; /* lines that begin with a name are continued further in */
    while (*text) {
        const int gap = (int)strspn(text, " \n"), n = (int)strcspn(text + gap, " \n");
        if (*text == '\n') hang = 2;
        if (*text == '\n' || column + gap + n > HELP_WIDTH)
            column = printf("\n%*s", HELP_INDENT + (*text == '\n' ? 0 : hang), "") - 1;
        else
            column += printf("%*s", gap, "");
        column += printf("%.*s", n, text + gap);
        text += gap + n;
    }
    printf("\n");
}

static void print_options(void) {
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const int column = printf("  %s %s", option_table[i].name, option_table[i].value);
        const int gap = column < HELP_INDENT ? HELP_INDENT - column : 1;
        memo_text text = {0};
        memo_text_put(&text, "%s", option_table[i].help);
        option_put_default(&option_table[i], &text);
        printf("%*s", gap, "");
        print_words(text.data ? text.data : "", column + gap);
        memo_text_free(&text);
    }
}

void train_print_help(void) {
    printf(
        "usage: train_gpt [OPTION...]\n\n"
        "Trains a GPT inside a \"device\" memory of a given size, on the CPU or on a GPU.  The "
        "losses are\nbitwise the same under every policy and every schedule.\n\n"
        "  train_gpt --demo                                   a minute: all policies, compared\n"
        "  train_gpt --text FILE --device-memory 40MiB        trains in 40 MiB, and says its plan\n"
        "  train_gpt --dry-run --cluster h100 --seq 65536     plans for a GPU that is not "
        "here\n\n");
    print_options();

    printf(
        "\nIf --degrees gives a block fewer tensor ranks, the others take other whole "
        "sequences.  Policies\nkeep, recompute and swap work with it.  If an option is given "
        "twice, the last one counts.\n\n"
        "SIZE is a number of bytes.  The suffixes KiB, MiB, GiB, TiB (or K, M, G, T) are powers "
        "of 1024,\nand KB, MB, GB, TB are powers of 1000.  1.5GiB is a size.  RATE is a SIZE each "
        "second, such as\n1.5GB/s or 1.5GB.\n\n"
        "--demo stands for:\n ");
    for (int k = 0; k < N_DEMO_ARGUMENTS; k++)
        printf(" %s%s", demo_arguments[k], k % 6 == 5 && k + 1 < N_DEMO_ARGUMENTS ? "\n " : "");
    printf("\n\nExit status: 0 done; 1 failed, or the policies disagree; 2 a mistake in the "
           "options, or a\nbudget that cannot hold the run, and no file is left behind; 130 "
           "interrupted.\n");
}

/* ---- values --------------------------------------------------------------------------------- */

/* Parses a decimal number from the start of text and sets *rest to the text after it.  Returns 0 if
 * there is none.  strtod alone would accept "inf", "nan", hexadecimal and leading blanks. */
static int parse_number(const char* text, double* value, const char** rest) {
    const char* first = text + (*text == '-');
    char* stop;
    if (!((*first >= '0' && *first <= '9') || *first == '.')) return 0;
    if (first[0] == '0' && (first[1] == 'x' || first[1] == 'X')) return 0;
    *value = strtod(text, &stop);
    *rest = stop;
    return stop != text && *value - *value == 0;
}

/* Returns the factor of a suffix; 0 if the suffix is unknown. */
static double size_unit(const char* suffix) {
    static const char letters[] = "kKmMgGtT";
    const char* letter = *suffix ? strchr(letters, *suffix) : NULL;
    const char* rest = suffix + (letter != NULL);
    const int is_decimal = !strcasecmp(rest, "b");
    if (*rest && !is_decimal && (!letter || strcasecmp(rest, "ib"))) return 0;
    return letter ? pow(is_decimal ? 1000 : 1024, (double)((letter - letters) / 2 + 1)) : 1;
}

/* Lists the names: "--type f16: unknown type; use f32 or bf16". */
static memo_status option_bad_name(const train_option* o, const char* value, memo_error* error) {
    char names[128] = "";
    if (!*value) value = "''";
    for (int64_t i = 0; option_name(o, i); i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s",
                 i == 0                  ? ""
                 : option_name(o, i + 1) ? ", "
                                         : " or ",
                 option_name(o, i));
    }
    return gpt_invalid(error, "%s %.80s: unknown %s; use %s", o->name, value, o->name + 2, names);
}

static memo_status option_bad_value(const train_option* o, const char* value, memo_error* error) {
    if (!*value) value = "''";
    if (o->kind == OPTION_SIZE)
        return gpt_invalid(error,
                           "%s %.80s: not a size above 0 in whole bytes; 64MiB, 1.5GiB or 500KB "
                           "would be",
                           o->name, value);
    if (o->kind == OPTION_RATE)
        return gpt_invalid(error, "%s %.80s: not a rate; 1.5GB/s or 100MB/s would be", o->name,
                           value);
    if (o->kind == OPTION_COUNT)
        return gpt_invalid(error, "%s %.80s: not a whole number from %.0f to %.0f", o->name, value,
                           o->low, o->high);
    return gpt_invalid(error, "%s %.80s: not a number from %g to %g", o->name, value, o->low,
                       o->high);
}

/* Reads bytes, or bytes a second. */
static memo_status option_set_bytes(train_options* options, const train_option* o,
                                    const char* value, memo_error* error) {
    const char* rest = "";
    char suffix[8]; /* longer than any that is known */
    double number = 0;
    if (!parse_number(value, &number, &rest)) return option_bad_value(o, value, error);
    snprintf(suffix, sizeof suffix, "%s", rest);
    const size_t n = strlen(suffix);
    if (o->kind == OPTION_RATE && n >= 2 && !strcmp(suffix + n - 2, "/s")) suffix[n - 2] = 0;
    const double unit = size_unit(suffix), n_bytes = number * unit;

    /* A number alone is bytes, even where gigabytes are meant. */
    if (o->kind == OPTION_RATE && n_bytes > 0 && n_bytes < o->low)
        return gpt_invalid(error,
                           "%s %.80s: %g bytes a second, and the least is 1KB/s; %gGB/s would work",
                           o->name, value, n_bytes, 1e9 * number < o->low ? 1 : number);
    if (unit <= 0 || n_bytes < o->low || n_bytes > o->high ||
        (unit <= 1 && number != floor(number)))
        return option_bad_value(o, value, error);
    *(long long*)option_field(options, o) = (int64_t)n_bytes;
    return MEMO_STATUS_OK;
}

static memo_status option_set(train_options* options, const train_option* o, char* value,
                              memo_error* error) {
    const char* rest = "";
    double number = 0;
    int64_t i;
    switch (o->kind) {
    case OPTION_PATH:
        if (!*value || strlen(value) > 900)
            return gpt_invalid(error, "%s: a name of 1 to 900 bytes would work", o->name);
        *(const char**)option_field(options, o) = value;
        return MEMO_STATUS_OK;

    case OPTION_NAME:
        for (i = 0; option_name(o, i) && strcmp(value, option_name(o, i)); i++) {
        }
        if (!option_name(o, i)) return option_bad_name(o, value, error);
        *(long long*)option_field(options, o) =
            o->field == OPTION_FIELD(policy) ? (int64_t)policy_order[i] : (int64_t)o->low + i;
        return MEMO_STATUS_OK;

    case OPTION_COUNT:
    case OPTION_REAL:
        if (!parse_number(value, &number, &rest) || *rest || number < o->low || number > o->high)
            return option_bad_value(o, value, error);
        if (o->kind == OPTION_COUNT && (double)(int64_t)number < number)
            return option_bad_value(o, value, error);
        if (o->kind == OPTION_REAL)
            *(double*)option_field(options, o) = number;
        else
            *(long long*)option_field(options, o) = (int64_t)number;
        return MEMO_STATUS_OK;

    case OPTION_SIZE:
    case OPTION_RATE: return option_set_bytes(options, o, value, error);
    case OPTION_FILES:
    case OPTION_FLAG: break;
    }
    return MEMO_STATUS_OK;
}

/* ---- names ---------------------------------------------------------------------------------- */

static memo_status option_unknown(const char* name, memo_error* error) {
    const char* nearest = NULL;
    int longest = 4; /* letters that both begin with, at least one more than "--xx" */
    if (name[0] != '-')
        return gpt_invalid(error, "%.80s: not an option; files to learn from follow --text", name);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        int n = 0;
        while (name[n] && name[n] == option_table[i].name[n]) n++;
        if (n <= longest) continue;
        longest = n;
        nearest = option_table[i].name;
    }
    if (nearest)
        return gpt_invalid(error, "%.80s: unknown option; the nearest is %s", name, nearest);
    return gpt_invalid(error, "%.80s: unknown option; --help lists all", name);
}

const train_option* option_find(const char* name) {
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (!strcmp(name, option_table[i].name)) return &option_table[i];
    return NULL;
}

/* ---- the command line ----------------------------------------------------------------------- */

static memo_status train_parse_arguments(int argc, char** argv, train_options* options,
                                         memo_error* error);

/* Reads one option and its value, at argv[*next]; *next moves past them. */
static memo_status train_parse_option(int argc, char** argv, int* next, train_options* options,
                                      memo_error* error) {
    const char* name = argv[(*next)++];
    const train_option* o = option_find(strcmp(name, "-h") ? name : "--help");
    const int first = *next;
    if (!o) return option_unknown(name, error);

    /* A flag, which may stand for other options. */
    if (o->kind == OPTION_FLAG) {
        *(long long*)option_field(options, o) = 1;
        return o->field == OPTION_FIELD(is_demo)
                   ? train_parse_arguments(N_DEMO_ARGUMENTS, demo_arguments, options, error)
                   : MEMO_STATUS_OK;
    }

    /* All files up to the next option, or one value. */
    while (*next < argc && strncmp(argv[*next], "--", 2) &&
           (o->kind == OPTION_FILES || *next == first))
        (*next)++;
    if (*next == first)
        return gpt_invalid(error, "%s needs a value: %s %s", o->name, o->name, o->value);
    if (o->kind != OPTION_FILES) return option_set(options, o, argv[first], error);
    options->text_files = argv + first;
    options->n_text_files = *next - first;
    return MEMO_STATUS_OK;
}

static memo_status train_parse_arguments(int argc, char** argv, train_options* options,
                                         memo_error* error) {
    int next = 0;
    while (next < argc && !options->is_help &&
           !options->is_version) { /* what follows is not read */
        memo_status status = train_parse_option(argc, argv, &next, options, error);
        if (status) return status;
    }
    return MEMO_STATUS_OK;
}

/* Sets the options that --cluster implies and that are not given. */
static void train_take_cluster(train_options* o) {
    const cluster_preset* c = &clusters[o->cluster - 1];
    if (o->flops <= 0) o->flops = c->flops;
    o->has_own_link = o->link_bandwidth > 0;
    if (!o->has_own_link && !o->profile)
        o->link_bandwidth = (int64_t)(1e9 * fmin(c->to_host, c->to_device));
    if (!o->device_memory) o->device_memory = (int64_t)c->memory << 30;
    if (!o->host_memory) o->host_memory = (int64_t)c->host << 30;
}

double train_link(const train_options* o, int to_device) {
    const cluster_preset* c = &clusters[o->cluster ? o->cluster - 1 : 0];
    if (!o->cluster || o->has_own_link) return (double)o->link_bandwidth;
    return 1e9 * (to_device ? c->to_device : c->to_host);
}

/* A fused update knows neither the norm of its step nor a step after it, and takes the gradients. */
static memo_status train_check_fused(const train_options* o, memo_error* error) {
    const char* why =
        o->clip_by == GPT_CLIP_STEP ? "--clip-by step, a norm that is known when the step is over; "
                                      "--clip-by layer or before"
        : o->is_graph               ? "--graph, which repeats one step; --update pass"
        : o->compare ? "--compare, which reads gradients when the step is over; --update deferred"
                     : NULL;
    if (!why) return MEMO_STATUS_OK;
    return gpt_invalid(error, "--update fused does not work with %s would work", why);
}

/* Refuses --update host if an option or the program needs the states on the device. */
static memo_status train_check_update(const train_options* o, memo_error* error) {
    const char* why = o->architecture.is_tied && !o->architecture.lora.rank
                          ? "--model with tied tables, which two layers share; --update device"
                      : o->zero ? "--zero: its ranks gather weights after an update; --zero 0"
                      : o->clip_by == GPT_CLIP_LAYER
                          ? "--clip-by layer, whose norms are of the device; --clip-by before"
                      : o->layers == 1 ? "--layers 1, whose states stay on the device; --layers 2"
                      : o->is_graph    ? "--graph, which keeps states on the device; no --graph"
                      : o->cluster     ? "--cluster: GPUs round otherwise; --update device"
                                       : NULL;
#ifdef TRAIN_CUDA
    if (!why) why = "a GPU, which rounds otherwise; --update device, or train_gpt on the host,";
#endif
    if (o->update == TRAIN_UPDATE_FUSED) return train_check_fused(o, error);
    if (o->update == TRAIN_UPDATE_DEFERRED && o->is_graph)
        return gpt_invalid(error, "--update deferred does not work with --graph, which repeats one "
                                  "step; --update pass would work");
    if (o->update != TRAIN_UPDATE_HOST || !why) return MEMO_STATUS_OK;
    return gpt_invalid(error, "--update host does not work with %s would work", why);
}

memo_status train_check_effects(const train_options* o, memo_error* error) {
    const char* of_training = o->output        ? "--output"
                              : o->loss_log    ? "--loss-log"
                              : o->save        ? "--save"
                              : o->resume      ? "--resume"
                              : o->write_model ? "--write-model"
                              : o->stop        ? "--stop"
                              : o->compare     ? "--compare"
                              : o->sample      ? "--sample"
                              : o->is_graph    ? "--graph"
                                               : NULL;

    const struct {
        int is_unused;
        const char *name, *why;
    } rules[] = {
        {o->is_dry_run && of_training && !o->is_demo, of_training,
         "with --dry-run, which does not train"},
        {o->is_dry_run && o->profile && o->link_bandwidth, "--link-bandwidth",
         "with --dry-run and --profile, which has the times of copies"},
        {!o->is_dry_run && o->cluster, "--cluster",
         "without --dry-run: a run measures its times; --flops gives the peak for its MFU"},
#ifndef TRAIN_CUDNN
        {!o->cluster && o->attention_memory, "--attention-memory",
         "without cuDNN's attention; make CUDNN=folder of cudnn-frontend "
         "build/examples/train_gpt_cuda builds a program with it"},
        {!o->cluster && !o->is_deterministic && o->slice_rows, "--deterministic",
         "with --slice-rows, without cuDNN's attention"},
#endif
        {o->alpha >= 0 && !plans_rows(o->policy) && !o->compare, "--alpha",
         "with this --policy; alpha or memo would use it"},
        {o->lists_rows && o->policy != MEMO_POLICY_MEMO, "--rows",
         "with this --policy, which treats all layers alike; memo would use it"},
        {!o->is_dry_run && o->model && !o->is_random && !o->tokens, "--model",
         "on a text, whose tokens are its bytes; --tokens FILE or --random-tokens would work"},
        {!o->is_dry_run && o->vocabulary != 256 && !o->is_random && !o->tokens, "--vocabulary",
         "on a text, whose 256 tokens are its bytes; --tokens or --random-tokens would have more"},
        {o->is_random && (o->n_text_files || o->sample), o->sample ? "--sample" : "--text",
         "with --random-tokens"},
        {o->tokens && (o->n_text_files || o->is_random || o->sample),
         o->sample         ? "--sample"
         : o->n_text_files ? "--text"
                           : "--random-tokens",
         "with --tokens"},
        {(o->lora || o->adapter) && !o->model, o->lora ? "--lora" : "--adapter",
         "without --model DIR, whose weights it is added to"},
        {(o->lora_alpha > 0 || o->lora_targets) && !o->lora && !o->adapter,
         o->lora_targets ? "--lora-targets" : "--lora-alpha", "without --lora RANK"},
        {o->write_model && !o->mlp, "--write-model",
         "with --mlp gelu, which none of the supported families has; --mlp swiglu would work"},
        {o->write_model && o->window, "--write-model",
         "with --window, which its config.json does not state"},
        {o->separator != 10 && !o->documents, "--separator", "without --documents N"},
        {o->stop > o->steps, "--stop", "above --steps, after which the run ends anyway"},
        {o->save_every && !o->save, "--save-every", "without --save FILE"},
        {o->takes_changes && !o->resume, "--resume-with-changes", "without --resume FILE"},
        {o->resume && (o->compare || o->seconds), o->compare ? "--compare" : "--seconds",
         "with --resume, which continues a run whose first steps and number of steps are fixed"},
        {o->spill_bandwidth && !o->spill, "--spill-bandwidth", "without --spill DIR"},
        {o->spill && !o->host_memory, "--spill",
         "without --host-memory SIZE: all rows stay in memory"},
        {o->schedule && o->tensor == 1 && o->sub_batches == 1, "--schedule",
         "without parts to order; --sub-batches 2 or --tensor 2 would give it some"},
        {o->zero && o->data * o->ring * o->ulysses == 1, "--zero",
         "without ranks to split over; --data, --ring or --ulysses 2 would give it some"}};

    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].is_unused)
            return gpt_invalid(error, "%s has no effect %s", rules[i].name, rules[i].why);
    if (o->documents && o->separator >= o->vocabulary)
        return gpt_invalid(error, "--separator %lld%s: a token below --vocabulary %lld would work",
                           o->separator, o->separator == 10 ? " (the default)" : "", o->vocabulary);
    if (o->is_graph && o->documents && o->ring * o->ulysses > 1)
        return gpt_invalid(error,
                           "--graph with --documents: --ring %lld and --ulysses %lld send what "
                           "documents need; data and tensor ranks, or no --graph, would work",
                           o->ring, o->ulysses);
    return train_check_update(o, error);
}

memo_status train_parse(int argc, char** argv, train_options* options, memo_error* error) {
    *options = train_options_default();
    memo_status status = train_parse_arguments(argc - 1, argv + 1, options, error);
    const int is_gpu = OPTION_IS_GPU || options->cluster;
    if (!status && options->cluster) train_take_cluster(options);
    if (options->type < 0) options->type = is_gpu;
    if (!options->tile) options->tile = is_gpu ? 1024 : 64;
    if (!options->kv_heads) options->kv_heads = options->heads;
    return status;
}
