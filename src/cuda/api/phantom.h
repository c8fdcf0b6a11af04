#pragma once
/* ---- 4 phantom memory: addresses that share a chunk of memory ---------------------------------
 *
 * A device with phantom_bytes has terabytes of addresses that kernels can use.  A chunk of the
 * GPU's memory is mapped behind all addresses, so the contents are garbage.  Use this device to
 * record a length that does not fit: the trainer runs a step unchanged, and the requests become a
 * trace.  A kernel sees what an earlier kernel wrote through another address; within one kernel
 * nothing is promised.  Pages can be exported as file descriptors and used by GPUDirect RDMA if the
 * GPU supports it, so that NCCL accepts the addresses. */
