/* clusters.h - figures of GPUs and their nodes, used by the estimates of layout_plan and of
 * train_gpt's dry runs.
 *
 * Single translation unit: everything is static. */
#ifndef CLUSTERS_H
#define CLUSTERS_H

#include <math.h>
#include <string.h>

/* A GPU and its node.
 *
 * TFLOPS and memory: NVIDIA's data sheets of A100 (A800 is alike), H100, H200 and HGX B200, and the
 * GA102 white paper, dense bf16; the memory of H200 is what the CUDA runtime reports.
 * Bandwidths, each way: what collectives and kernels reach is taken as 0.75 of those data sheets.
 *   inside a node   NVLink 200 (A800), 300 (A100), 450 (H100, H200), 900 GB/s (B200)
 *   between nodes   0.8 of a port for each GPU: 200 Gb/s in DGX A100, 400 Gb/s in DGX H100 to B200
 *   memory          2039 (A800, A100), 3350, 4800, 8000 and 936 GB/s
 *   to the host     PCIe 5.0 x16, 64 GB/s; PCIe 4.0 x16, 32 GB/s, which two GPUs of a DGX A100
 *                   share; for A800 as fitted to Table 4 of the MEMO paper (bench/paper_tables)
 * Host memory: a GPU's share of 2 TiB a node, as in a DGX of 8 GPUs and in the MEMO paper's
 * cluster; of 256 GiB for four 3090, 128 GiB for a 4090 or 5090 and 64 GiB for a 4080 or 5080, as
 * assumed here.
 * 3090-pcie is the second cluster of the Oases paper: nodes of four GPUs and one 100 Gb/s port,
 * with processors of PCIe 3.0; its links are those that bench/papers/paper_oases.h assumes.
 *
 * The figures below are of secondary sources, not compared with a data sheet, and not measured.
 * GH200: 96 GB of HBM3 at 4000 GB/s, 480 GB of LPDDR5X; copies of pinned memory over NVLink-C2C do
 * not reach its 450 GB/s each way: 412 GB/s to the device and 170 GB/s back.
 * GB200: 186 GB at 8000 GB/s, 2500 TFLOP/s dense; two GPUs share a Grace with 480 GB and
 * its 450 GB/s each way, of which 0.75 is assumed.
 * rtx4080, rtx4090, rtx5080 and rtx5090: products that add up in fp32, 512 operations a cycle of
 * each multiprocessor at the boost clock of 2.505, 2.52, 2.617 and 2.407 GHz: 97.5, 165, 112.6 and
 * 209.5 TFLOP/s; memory 717, 1008, 960 and 1792 GB/s; PCIe 4.0 x16, of the last two 5.0.
 * GB10: 1 PFLOP/s of sparse FP4, of which bf16 is assumed to reach an eighth; 128 GB at 273 GB/s,
 * one memory, which the device and the host halve here. */
typedef struct cluster_preset {
    const char* name;
    double per_node;                    /* GPUs */
    double memory;                      /* GiB of a GPU */
    double flops;                       /* peak of a GPU, TFLOP/s */
    double link, nic, memory_bandwidth; /* GB/s of a GPU, each way */
    double to_host, to_device;          /* GB/s of a GPU's copies */
    double shared_bus;                  /* 0 or 1 */
    double host;                        /* GiB of the node's memory, of a GPU */
    double processors;                  /* multiprocessors of a GPU */
} cluster_preset;
static const cluster_preset clusters[] = {
    {"a800", 8, 80, 312, 150, 20, 1500, 10, 10, 0, 256, 108},
    {"a100", 8, 80, 312, 225, 20, 1500, 12, 12, 0, 256, 108},
    {"h100", 8, 80, 989, 337, 40, 2500, 48, 48, 0, 256, 132},
    {"h200", 8, 139, 989, 337, 40, 3600, 48, 48, 0, 256, 132},
    {"b200", 8, 180, 2250, 675, 40, 6000, 48, 48, 0, 256, 148},
    {"gh200", 1, 95, 989, 40, 40, 3000, 170, 412, 0, 447, 132},
    {"gb200", 4, 184, 2500, 675, 40, 6000, 168, 168, 0, 223, 148},
    {"gb10", 1, 59, 125, 20, 20, 204, 102, 102, 0, 59, 48},
    {"rtx4080", 1, 16, 97.5, 10, 10, 538, 24, 24, 0, 64, 76},
    {"rtx4090", 1, 24, 165, 10, 10, 756, 24, 24, 0, 128, 128},
    {"rtx5080", 1, 16, 112.6, 10, 10, 720, 48, 48, 0, 64, 84},
    {"rtx5090", 1, 32, 209.5, 10, 10, 1344, 48, 48, 0, 128, 170},
    {"3090-pcie", 4, 24, 71, 4, 3, 700, 12, 12, 1, 64, 82}};
enum { N_CLUSTERS = sizeof clusters / sizeof *clusters };

/* Returns the index of the preset; N_CLUSTERS if none has this name. */
static inline int cluster_find(const char* name) {
    int i;
    for (i = 0; i < N_CLUSTERS && strcmp(name, clusters[i].name); i++) continue;
    return i;
}

/* Of the speed of equal GPUs, as memo_parallel_cluster.speed_deviation.  Sinha et al., "Not All
 * GPUs Are Created Equal" (SC 2022, arXiv 2208.11035), measured a variation of 8 % on average.  It is
 * assumed to be the range among some hundred GPUs: about six deviations. */
#define CLUSTER_SPEED_DEVIATION (0.08 / 6)

/* Fractions of the peak that products and attention reach with so many keys in sight. */
typedef struct cluster_rates {
    double n_keys, products, forward, backward;
} cluster_rates;

/* Not measured: assumed. */
static const cluster_rates cluster_assumed = {0, 0.75, 0.6, 0.55};

/* Measured on one H200 in bf16, which computes as an H100 and a GH200: a product of 65536 x 4096 x 16384 by
 * cuBLASLt, 721 TFLOP/s, and cuDNN's causal attention with heads of 128, 649 and 353, 601 and 520,
 * 555 and 526 TFLOP/s. */
static const cluster_rates cluster_measured[] = {{16384, 721.0 / 989, 649.0 / 989, 353.0 / 989},
                                                 {65536, 721.0 / 989, 601.0 / 989, 520.0 / 989},
                                                 {131072, 721.0 / 989, 555.0 / 989, 526.0 / 989}};
enum { N_MEASURED = sizeof cluster_measured / sizeof *cluster_measured };
/* The rates of 131,072 keys hold up to so many (bench/results/h200.md).  At 1,048,576 tokens a step
 * of 63.0 s by these rates took 75.6 s, of which 11.5 s are attention by arithmetic: 1.2 times. */
#define CLUSTER_LENGTH_MOST 262144

static inline int cluster_is_measured(const cluster_preset* cluster) {
    return cluster && (!strcmp(cluster->name, "h100") || !strcmp(cluster->name, "h200") ||
                       !strcmp(cluster->name, "gh200"));
}

/* Between two measured lengths the rates are linear in the logarithm; beyond, as at the nearest.
 * cluster may be NULL. */
static inline cluster_rates cluster_rates_of(const cluster_preset* cluster, double n_keys) {
    const cluster_rates* m = cluster_measured;
    cluster_rates rates = m[0];
    if (!cluster_is_measured(cluster)) return cluster_assumed;
    for (int i = 1; i < N_MEASURED && n_keys > m[i - 1].n_keys; i++) {
        double part = log(n_keys / m[i - 1].n_keys) / log(m[i].n_keys / m[i - 1].n_keys);
        if (part > 1) part = 1;
        rates.forward = m[i - 1].forward + part * (m[i].forward - m[i - 1].forward);
        rates.backward = m[i - 1].backward + part * (m[i].backward - m[i - 1].backward);
    }
    return rates;
}

/* Kernels of attention.  TRITON: FlashAttention 1 as of 2023, in Triton, on an H100: 220 and 160
 * TFLOP/s, fitted to MPT runs of 8K to 64K tokens (layout_runs.h). */
typedef enum cluster_kernel { CLUSTER_CUDNN = 0, CLUSTER_TRITON } cluster_kernel;

static inline cluster_rates cluster_kernel_rates(cluster_kernel kernel,
                                                 const cluster_preset* cluster, double n_keys) {
    cluster_rates rates = cluster_rates_of(cluster, n_keys);
    if (kernel == CLUSTER_TRITON && cluster_is_measured(cluster)) {
        rates.forward = 220.0 / 989;
        rates.backward = 160.0 / 989;
    }
    return rates;
}

#endif
