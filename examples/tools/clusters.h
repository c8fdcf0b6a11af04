/* clusters.h - figures of GPUs and their nodes, used by the estimates of layout_plan and of
 * train_gpt's dry runs.
 *
 * Single translation unit: everything is static. */
#ifndef CLUSTERS_H
#define CLUSTERS_H

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
 * cluster; of 256 GiB for four 3090, as assumed here.
 * 3090-pcie is the second cluster of the Oases paper: nodes of four GPUs and one 100 Gb/s port,
 * with processors of PCIe 3.0; its links are those that bench/paper_oases.h assumes. */
typedef struct cluster_preset {
    const char* name;
    double per_node;                               /* GPUs */
    double memory;                                 /* GiB of a GPU */
    double flops;                                  /* peak of a GPU, TFLOP/s */
    double link, nic, memory_bandwidth, host_link; /* GB/s of a GPU, each way */
    double shared_bus;                             /* 0 or 1 */
    double host;                                   /* GiB of the node's memory, of a GPU */
} cluster_preset;
static const cluster_preset clusters[] = {{"a800", 8, 80, 312, 150, 20, 1500, 10, 0, 256},
                                          {"a100", 8, 80, 312, 225, 20, 1500, 12, 0, 256},
                                          {"h100", 8, 80, 989, 337, 40, 2500, 48, 0, 256},
                                          {"h200", 8, 139, 989, 337, 40, 3600, 48, 0, 256},
                                          {"b200", 8, 180, 2250, 675, 40, 6000, 48, 0, 256},
                                          {"3090-pcie", 4, 24, 71, 4, 3, 700, 12, 1, 64}};
enum { N_CLUSTERS = sizeof clusters / sizeof *clusters };

/* Returns the index of the preset; N_CLUSTERS if none has this name. */
static inline int cluster_find(const char* name) {
    int i;
    for (i = 0; i < N_CLUSTERS && strcmp(name, clusters[i].name); i++) continue;
    return i;
}

#endif
