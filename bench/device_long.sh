#!/bin/sh
# device_long.sh - the trainer on long sequences and on 8B parameters on one GPU, one case a call, each under nine minutes:
#
#   sh bench/device_long.sh build           builds the trainer only, so that the next calls have all of their time
#   sh bench/device_long.sh 512k            8 layers, 3 steps; alpha 0.28, which needs no profile: by estimate it costs 0.3 %
#                                           against the planned rows, and takes 85 GiB instead of 137
#   sh bench/device_long.sh 1m              4 layers, 2 steps; rows without a profile: all but attention recomputed,
#                                           with layer inputs and attention in host memory
#   sh bench/device_long.sh slices          2 layers of an 8B model at 1M tokens in slices of 16384, 2 steps
#   sh bench/device_long.sh 8b              31 layers of Llama 3 8B's shape at 64K tokens in 24 GiB, 2 steps, 14 bytes of states
#                                           a parameter; needs 112 GiB of pinned memory.  LAYERS: fewer
#   sh bench/device_long.sh pytorch-8b      the same by FSDP2 with states in host memory, attention kept, 16 bytes a parameter
#   sh bench/device_long.sh pytorch-512k    PyTorch with recomputation at 512K tokens, printed as it is
#
# The MLP of the long sequences runs 16384 tokens at a time.  At 593 TFLOP/s a step of 512k takes 122 s, one of 1m 236 s: LIMIT_S=590 leaves
# more for it.  Not run yet.  --dry-run prints the commands.  Environment: as device.sh; needs CUDNN, since the
# built-in attention is too slow at these lengths.
set -u
cd "$(dirname "$0")/.." || exit 1
. bench/device_common.sh

case=${1:-}
[ "${2:-}" = --dry-run ] && DRY_RUN=1
case $case in
build | 512k | 1m | slices | 8b | pytorch-8b | pytorch-512k) ;;
*) stop "build, 512k, 1m, slices, 8b, pytorch-8b or pytorch-512k would work (${case:-none given})" ;;
esac
begin "-long-$case"
[ -n "${CUDNN:-}${TRAINER:-}${DRY_RUN:-}" ] || stop "CUDNN must name the folder of cudnn-frontend"
long=${TOKENS:-524288}
: >"$folder/trainer.md"

case $case in
pytorch*) ;;
*) build_trainer ;;
esac
llama="--kv-heads 8 --mlp swiglu --mlp-columns 14336"
case $case in
slices | *8b) VOCABULARY=${VOCABULARY:-128256} ;; # of Llama 3, as the widths
esac
case $case in
512k) train "$case" 600 alpha "$long" 8 3 --mlp-rows 16384 --alpha 0.28 ;;
# All rows of the MLP's tensors would need 72 GiB: 189 GiB in all.
1m) train "$case" 600 alpha $((2 * long)) 4 2 --mlp-rows 16384 --alpha 0 ;;
slices) train "$case" 560 alpha $((2 * long)) 2 2 --alpha 0 --slice-rows 16384 --mlp-rows 4096 $llama --states bf16 ;;
8b) train "$case" 400 memo $((long / 8)) "${LAYERS:-31}" 2 --device-memory 24GiB --mlp-rows 8192 $llama --states bf16 ;;
pytorch-8b) torch "$case" 400 $((long / 8)) "${LAYERS:-31}" 3 --policy select --offload-states $llama ;;
pytorch-512k) torch "$case" 520 "$long" 8 3 ;;
esac
is_dry && exit

{
    write_head "sh bench/device_long.sh $case"
    write_stages
    [ "$case" = build ] || write_trainer
} 2>/dev/null | end
