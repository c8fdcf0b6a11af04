# device_common.sh - shared by device.sh and device_long.sh, which source it: stages with limits, the machine, libraries.

begin_s=$(date +%s)
limit_s=${LIMIT_S:-540}
PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer:/usr/local/cuda/extras/compute-sanitizer
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:/usr/local/cuda/lib
LC_ALL=C # one form of numbers on every machine
build_s=300 # for the trainer, and for a program with cuDNN
export PATH LD_LIBRARY_PATH LC_ALL

left() { echo $((begin_s + limit_s - $(date +%s))); }
stop() { echo "$(basename "$0"): $1" >&2; exit 1; }
is_dry() { [ -n "${DRY_RUN:-}" ]; }

gib_of() { awk -v key="$1:" '$1 == key { printf "%d", $2 / 1048576 }' /proc/meminfo; }

# begin SUFFIX: works in build/deviceSUFFIX, and writes GPUSUFFIX.md.  Prints the host's memory first, because cases are sized by it: host_gib is what a
# case may pin.
begin() {
    available_gib=$(gib_of MemAvailable)
    host_gib=${HOST_GIB:-$((available_gib * 7 / 10))}
    echo "$(basename "$0"): host memory: $(gib_of MemTotal) GiB in all, $available_gib GiB available; cases pin at most $host_gib GiB"
    failed=0 reserved_s=0 gpu="no GPU" arch=
    folder=build/device$1
    is_dry || rm -rf "$folder"
    mkdir -p "$folder" || exit 1
    stages=$folder/stages.md
    : >"$stages"
    results=${OUT:-bench/results}
    # A trainer given by the user, such as the stand-ins', needs no GPU.
    if ! is_dry && [ -z "${TRAINER:-}${is_packing:-}" ]; then
        command -v nvidia-smi >/dev/null 2>&1 || stop "no GPU here: nvidia-smi is missing"
        gpu=$(nvidia-smi -i 0 --query-gpu=name --format=csv,noheader 2>/dev/null) && [ -n "$gpu" ] ||
            stop "no GPU here: nvidia-smi finds none"
        command -v nvcc >/dev/null 2>&1 || stop "needs nvcc (developer.nvidia.com/cuda-downloads)"
        arch=$(nvidia-smi -i 0 --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -cd 0-9)
        arch=${arch:+sm_$arch}
        # Where make looks for headers.
        [ -n "${CUDA_HOME:-}" ] || [ -f /usr/local/cuda/include/cuda_runtime.h ] ||
            export CUDA_HOME="$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")"
    fi
    command -v timeout >/dev/null 2>&1 || stop "needs timeout (coreutils)"
    name=$(echo "$gpu" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')$1
    file=$results/$name.md
    is_dry && return
    mkdir -p "$results" || exit 1
    # A program that was built elsewhere finds its libraries in Python's packages, too.
    packages=$(python3 -c 'import nvidia; print("\n".join(nvidia.__path__))' 2>/dev/null)
    for package in $packages; do
        for home in "$package"/*/lib; do [ ! -d "$home" ] || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$home; done
    done
}

# stage NAME SECONDS COMMAND...: command and output in $folder/NAME.log; a row in the table of stages.  An exit status of $expected
# counts as passed, with $expected_text in the log.  reserved_s are left for later stages.
stage() {
    stage_name=$1 seconds=$2 expected=${expected:-0}
    shift 2
    if is_dry; then
        printf '%s, at most %s s:\n   ' "$stage_name" "$seconds"
        printf ' %s' "$@"
        printf '\n'
        status=0
        return 0
    fi
    echo "\$ $*" >"$folder/$stage_name.log"
    stage_begin_s=$(date +%s)
    seconds_left=$(($(left) - reserved_s))
    [ "$seconds" -le "$seconds_left" ] || seconds=$seconds_left
    status=1
    if [ "$seconds" -le 0 ]; then
        result="**not run: no time left**" failed=1
    else
        timeout -k 5 "$seconds" "$@" >>"$folder/$stage_name.log" 2>&1
        status=$?
        case $status in
        0) result=passed ;;
        "$expected")
            result="passed, exit status $status"
            grep -q "$expected_text" "$folder/$stage_name.log" || failed=1 result="**failed, exit status $status**"
            ;;
        124 | 137) failed=1 result="**stopped after $seconds s**" ;;
        *) failed=1 result="**failed, exit status $status**" ;;
        esac
    fi
    # A skipped test counts as a failure, unless memory was too small or in use.
    [ "$result" = passed ] && grep '^ok .*# SKIP\|^1\.\.0' "$folder/$stage_name.log" | grep -qv 'are not free$' &&
        failed=1 result="**tests were skipped**"
    counts=$(awk '/^ok .*# SKIP/ { s++; next } /^ok / { p++ } /^not ok / { f++ }
        END { if (p + f + s) printf ": %d passed, %d failed, %d skipped", p, f, s }' "$folder/$stage_name.log")
    echo "| $stage_name | $result$counts | $(($(date +%s) - stage_begin_s)) s |" >>"$stages"
    echo "$(basename "$0"): $stage_name: $result$counts"
    keep_partial
    case $result in passed*) ;; *) tail -n 20 "$folder/$stage_name.log" >&2 2>/dev/null ;; esac
}

# Tables and messages so far, in $OUT until `end` writes all.  Two files, because $OUT may come back with few.
keep_partial() {
    [ -z "${OUT:-}" ] || { cat "$folder"/*.md >"$results/partial.md"; tail -n 200 "$folder"/*.log >"$results/partial.log"; } 2>/dev/null
}

# bench NAME SECONDS COMMAND...: writes its tables to $folder/NAME.md and its other messages to the log.
bench() {
    bench_name=$1 bench_seconds=$2
    shift 2
    is_dry || : >"$folder/$bench_name.md"
    stage "$bench_name" "$bench_seconds" sh -c 'out=$1; shift; exec "$@" >"$out"' sh "$folder/$bench_name.md" "$@"
    is_dry || keep_partial
}

# find_library NAME HEADER: puts what nvcc needs to build with it into $flags, and its folder into $homes.  From where nvcc finds it, otherwise from
# Python's packages (nvidia-cublas, ...), whose headers are searched after nvcc's own: a package may bring older headers of
# the CUDA runtime.
homes=
find_library() {
    flags=-l$1
    is_dry && return
    printf '#include <cuda_runtime.h>\n#include <%s>\nint main() { return 0; }\n' "$2" >"$folder/probe.cpp"
    nvcc "$folder/probe.cpp" $flags -o "$folder/probe" >"$folder/probe.log" 2>&1 && return
    for package in $packages; do
        for library in "$package"/*/lib/lib"$1".so*; do
            home=${library%/lib/*}
            [ -f "$home/include/$2" ] || continue
            ln -sf "$library" "$folder/lib$1.so" # there its name ends in a version
            flags="-Xcompiler -idirafter,$home/include -L$folder -Xlinker -rpath=$home/lib -l$1"
            nvcc "$folder/probe.cpp" $flags -o "$folder/probe" >"$folder/probe.log" 2>&1 && homes="$homes $home" && return
        done
    done
    flags=-l$1
    return 1
}

# Flags of nvcc for the headers of $homes.
include_homes() { for home in $homes; do printf ' -Xcompiler -idirafter,%s/include' "$home"; done; }

# find_torch: puts what nvcc needs to build with PyTorch's caching allocator into $flags; empty without PyTorch or its headers.
find_torch() {
    flags=
    is_dry && return
    home=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null) && [ -n "$home" ] || return
    torch="-DARENA_TORCH -Xcompiler -idirafter,$home/include -L$home/lib -Xlinker -rpath=$home/lib -lc10_cuda -lc10"
    printf '%s\n' '#include <c10/cuda/CUDACachingAllocator.h>' \
        'int main() { c10::cuda::CUDACachingAllocator::raw_delete(nullptr); }' >"$folder/probe.cpp"
    nvcc -std=c++17 "$folder/probe.cpp" $torch -o "$folder/probe" >"$folder/probe.log" 2>&1 && flags=$torch
}

# Versions of what the programs link.
library_versions() {
    for header in cublas_api.h:CUBLAS_VER_ cudnn_version.h:CUDNN_ nccl.h:NCCL_; do
        for where in ${CUDA_HOME:-/usr/local/cuda}/include /usr/include $(for home in $homes; do echo "$home/include"; done); do
            [ -f "$where/${header%:*}" ] || continue
            sed -n "s/^#define ${header#*:}\(MAJOR\|MINOR\|PATCHLEVEL\|PATCH\)  *\([0-9]*\).*/\2/p" "$where/${header%:*}" | paste -sd. - |
                sed "s/^/${header%.h:*} /"
            break
        done
    done | paste -sd, -
    nvidia-smi -i 0 --query-gpu=clocks.max.sm,clocks.max.mem,ecc.mode.current,persistence_mode,mig.mode.current --format=csv,noheader \
        2>/dev/null | sed 's/^/; clocks, ECC, persistence, MIG: /'
}

# The head of a file of results: the machine, the commit, the stages.
write_head() { # COMMAND
    commit=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
    [ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit="$commit with changes"
    lp_solve="lp_solve is not installed"
    for header in /usr/include/lpsolve/lp_lib.h /usr/local/include/lpsolve/lp_lib.h /usr/include/lp_lib.h; do
        [ -f "$header" ] && lp_solve="lp_solve is installed"
    done
    echo "# $gpu"
    echo
    echo "Written by \`$1\`."
    echo
    echo "| | |"
    echo "|---|---|"
    nvidia-smi -i 0 --query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max,power.limit \
        --format=csv,noheader 2>/dev/null |
        awk -F', ' '{ printf "| GPU | %s, %s, driver %s, PCIe gen %s x%s, %s |\n", $1, $2, $3, $4, $5, $6 }'
    echo "| CUDA | $(nvcc --version | sed -n 's/.*release \([0-9.]*\), V\([0-9.]*\).*/\2/p') |"
    echo "| host | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(getconf _NPROCESSORS_ONLN) processors, $(gib_of MemTotal) GiB, of which $available_gib GiB were available |"
    echo "| huge pages | $(cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null || echo unknown); pool: $(awk '/^HugePages_Total/ { print $2 }' /proc/meminfo) |"
    echo "| date | $(date -u '+%Y-%m-%d %H:%M UTC') |"
    echo "| commit | $commit, memo $(sed -n 's/^#define MEMO_VERSION_[MP][A-Z]* *\([0-9]*\).*/\1/p' memo.h | paste -sd. -) |"
    echo "| compiler, system | $(${CC:-cc} --version | head -n 1), $(uname -srm) |"
    echo "| libraries | $(library_versions) |"
    echo "| variables |$(for variable in LIMIT_S HOST_GIB TOKENS ALPHA LAYERS HIDDEN HEADS VOCABULARY TILE STEPS FLOPS CUDNN; do
        eval "[ -z \"\${$variable:-}\" ] || printf ' %s=%s' $variable \"\$$variable\""
    done) |"
    echo "| planner | CUDA programs of bench/ and tests/ are built without lp_solve ($lp_solve) |"
}
write_stages() {
    echo
    echo "| stage | result | time |"
    echo "|---|---|---|"
    cat "$stages"
    echo
}

# The log for others: results, then the command and the last messages of each stage, without this machine's folders.
write_log() {
    cat "$file"
    for log in "$folder"/*.log "$folder"/nccl.*.txt; do
        [ -s "$log" ] || continue
        printf '\n<details><summary>%s</summary>\n\n```\n' "${log##*/}"
        tail -n 200 "$log" | tr '\r' '\n' | sed "s/^\`\`\`/ &/"
        printf '```\n</details>\n'
    done
    echo
}

# end: the file, from standard input; with OUT, also one log of all parts.
end() {
    cat -s >"$file.new" && mv "$file.new" "$file" && rm -f "$results"/partial.* || failed=1
    [ -z "${OUT:-}" ] || write_log | sed -e "s|$(pwd -P)|memo|g" -e "s|${HOME:-/nowhere}/|~/|g" -e "s|$(uname -n)|host|g" \
        >>"$results/$(echo "$gpu" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')-log.md"
    echo "$(basename "$0"): $file, $(($(date +%s) - begin_s)) s"
    exit $failed
}

# ---- programs built elsewhere ----

pack=build/device-pack
# Beside each program lie the checksums of its sources: by content, because a copied tree may have other dates.  A change of
# one program's sources does not concern the others.
sources_of() { # SOURCE FLAGS...: the files that it includes, without those of libraries
    sources_flags= sources_first=$1
    for flag; do
        case $flag in -DLINKED) sources_first="$sources_first examples/gpt/memo.c" ;; esac
        case $flag in -D*) sources_flags="$sources_flags $flag" ;; esac
    done
    ${CXX:-c++} -x c++ -MM -MG -D__CUDACC__ -I. -Iexamples -Itests/support -Itests/cuda $sources_flags $sources_first |
        tr ' ' '\n' | sed 's,^\./,,' | grep '\.' | sort -u | while read -r path; do [ ! -f "$path" ] || echo "$path"; done
}
trainer_files() { ls Makefile ./*.h ./*.cuh extras/*.h examples/*.h examples/tools/*.h examples/gpt/*.c examples/gpt/*/*.[ch] examples/gpt/*/*.cu; }
pack_kind() { # PROGRAM
    [ "$1" = train_gpt_cuda ] && echo "$arch ${CUDNN:+with cuDNN}" || echo "$arch"
}
pack_mark() { # PROGRAM, with its files in standard input
    { pack_kind "$1" && xargs cksum; } >"$pack/$1.sources"
    [ "$(wc -l <"$pack/$1.sources")" -gt 1 ] || stop "$1: its sources are not found"
}
# pack_fault PROGRAM: why a packed program is not of these sources; nothing if it is.
pack_fault() {
    [ "$(head -n 1 "$pack/$1.sources" 2>/dev/null)" = "$(pack_kind "$1")" ] || { echo "built for something else than $(pack_kind "$1")"; return; }
    sed 1d "$pack/$1.sources" | while read -r sum size path; do
        [ "$(cksum <"$path" 2>/dev/null)" = "$sum $size" ] || { echo "$path has changed"; break; }
    done
}
# check_pack PROGRAM...: a stale program is refused at once: building it would take the time of the stages.
check_pack() {
    is_dry && return
    [ -z "${is_packing:-}" ] || return 0
    for packed; do
        [ -x "$pack/$packed" ] && fault=$(pack_fault "$packed") && [ -n "$fault" ] || continue
        stop "$pack/$packed is stale: $fault; sh bench/device.sh pack builds it again, and without $pack programs are built here"
    done
}
is_packed() { # PROGRAM, checked before
    is_dry && return 1
    [ -z "${is_packing:-}" ] && [ -x "$pack/$1" ]
}

# ---- the trainer ----

# Identifies the trainer's sources by content, because a copied tree may have other dates.
trainer_sources() {
    echo "$arch ${CUDNN:-}"
    trainer_files | xargs cat | cksum
}

# build_trainer: the program in $trainer, with cuDNN's attention if CUDNN names the folder of cudnn-frontend, and with NCCL
# if it is found.
build_trainer() { # VARIABLE=VALUE... of make
    trainer=${TRAINER:-build/examples/train_gpt_cuda}
    [ -z "${TRAINER:-}" ] || return 0
    check_pack train_gpt_cuda
    if is_packed train_gpt_cuda; then
        trainer=$pack/train_gpt_cuda
        echo "| build-trainer | packed | 0 s |" >>"$stages"
        return
    fi
    if ! is_dry && [ -x "$trainer" ] && [ "$(cat "$trainer.sources" 2>/dev/null)" = "$(trainer_sources)" ]; then
        echo "| build-trainer | built by an earlier call | 0 s |" >>"$stages"
        return
    fi
    find_library cublasLt cublasLt.h
    find_library nccl nccl.h
    nccl_home=$(echo "$flags" | sed -n 's/.*-idirafter,\(.*\)\/include .*/\1/p') # empty: where make finds it, or nowhere
    if [ -n "${CUDNN:-}" ]; then
        find_library cudnn cudnn.h
        find_library nvrtc nvrtc.h
    fi
    directories=-L$folder
    for home in $homes; do directories="$directories -Wl,-rpath,$home/lib"; done
    stage build-trainer $build_s env NVCC_APPEND_FLAGS="$(include_homes)" MEMO_NO_INSTALL=1 make -j4 CUDA_ARCH="${arch:-native}" \
        LDFLAGS="$directories" CUDNN="${CUDNN:-}" ${nccl_home:+NCCL_HOME="$nccl_home"} "$@" "$trainer"
    is_dry || [ "$status" != 0 ] || trainer_sources >"$trainer.sources"
}

# train NAME SECONDS POLICY TOKENS LAYERS STEPS FLAGS...: a row in $folder/trainer.md.  A budget that cannot hold the run
# is a result.  STEPS: those that count.
train() {
    train_name=$1 train_seconds=$2 train_policy=$3 train_tokens=$4 train_layers=$5 train_steps=$6
    shift 6
    [ "$train_policy" != memo ] || train_steps=$((train_steps + 4)) # times the first ones, and plans
    expected=2 expected_text='cannot hold'
    stage "$train_name" "$train_seconds" "$trainer" --policy "$train_policy" --random-tokens \
        --vocabulary "${VOCABULARY:-50304}" --hidden "${HIDDEN:-4096}" --heads "${HEADS:-32}" --seq "$train_tokens" \
        --layers "$train_layers" --batch 1 --tile "${TILE:-4096}" --steps "$train_steps" --flops "${FLOPS:-989}" \
        --host-memory "${host_gib}GiB" --learning-rate 0.001 --seed 1 ${CUDNN:+--deterministic 0} "$@"
    expected=0
    is_dry && return
    case " $* " in *" --graph "*) train_policy="$train_policy, a graph" ;; esac
    awk -v policy="$train_policy" -v tokens="$train_tokens" -v layers="$train_layers" -v status="$status" '
        function cell(text) { printf " %s |", text }
        /^plan / { plan = $0; sub(/^plan *policy [a-z]*: */, "", plan) }
        /^rate / { rate = $2 }
        /MFU/ { mfu = $0; sub(/.*MFU /, "", mfu); sub(/%.*/, "", mfu) }
        /cannot hold/ { fault = "does not fit" }
        END {
            printf "| memo, %s |", policy
            cell(tokens)
            cell(layers)
            cell(rate ? sprintf("%.1f ms", 1e3 * tokens / rate) : fault ? fault : "exit status " status)
            cell(rate)
            cell(mfu ? mfu " %" : "")
            cell(plan)
            print ""
        }' "$folder/$train_name.log" >>"$folder/trainer.md"
    keep_partial
}

# torch NAME SECONDS TOKENS LAYERS STEPS FLAGS...: a row in $folder/trainer.md.
torch() {
    torch_name=$1 torch_seconds=$2 torch_tokens=$3 torch_layers=$4 torch_steps=$5
    shift 5
    has_torch=${has_torch-$(is_dry || { python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null && echo yes; })}
    if ! is_dry && [ -z "$has_torch" ]; then
        [ -n "${TRAINER:-}" ] || failed=1
        echo "| PyTorch | $torch_tokens | $torch_layers | not run: python3 has no torch with a GPU | | | |" >>"$folder/trainer.md"
        return
    fi
    bench "$torch_name" "$torch_seconds" python3 bench/pytorch_gpt.py --tokens "$torch_tokens" --layers "$torch_layers" \
        --hidden "${HIDDEN:-4096}" --heads "${HEADS:-32}" --vocabulary "${VOCABULARY:-50304}" --steps "$torch_steps" "$@"
    is_dry || awk -F' *[|] *' 'NF > 5 { printf "| %s | %s | %s | %s | %s | | device %s at most |\n", $2, $3, $4, $5, $6, $7 }' \
        "$folder/$torch_name.md" >>"$folder/trainer.md"
    is_dry || keep_partial
}

write_trainer() {
    echo "| way | tokens | layers | step | tokens/s | MFU | memory |"
    echo "|---|---|---|---|---|---|---|"
    sort -t '|' -k 3,3n -k 6,6rn "$folder/trainer.md" # the best of each length first
    echo
    echo "The step of memo is the mean after the first step (a graph's: after the second), PyTorch's the median after the first."
    echo "MFU counts 6 s P + 6 n h s^2 operations against ${FLOPS:-989} TFLOP/s. PyTorch: \`bench/pytorch_gpt.py\`, with"
    echo "the same states."
    echo
}

# The ratios of lengths, by tokens/s, and the step against products and attention alone plus what the plan says that it
# recomputes.  Reads trainer.md and memo-TOKENS.log in $folder.
trainer_goals() { # TOKENS...
    echo "| tokens | memo / PyTorch, layers recomputed | memo / PyTorch's best but keeping | memo / PyTorch's best | swap / keep | graph / calls | step of memo / (products and attention alone + recomputation of the plan) |"
    echo "|---|---|---|---|---|---|---|"
    for tokens in "$@"; do
        recompute_ms=$(sed -n 's/^predicted.* and \([0-9.]*\) ms recomputing.*/\1/p' "$folder/memo-$tokens.log")
        awk -F' *[|] *' -v tokens="$tokens" -v recompute_s="${recompute_ms:-0}e-3" '
            function ratio(a, b) { return a > 0 && b > 0 ? sprintf("%.3f", a / b) : "not measured" }
            $3 == tokens { rate[$2] = $6 + 0 }
            $3 == tokens && $2 ~ /^PyTorch/ && $6 + 0 > best { best = $6 + 0; best_way = $2 }
            $3 == tokens && $2 ~ /^PyTorch/ && $2 !~ /everything kept/ && $6 + 0 > saving { saving = $6 + 0; saving_way = $2 }
            function way(name) { sub(/^PyTorch, /, "", name); return name ? " (" name ")" : "" }
            END {
                alone = rate["products and attention alone, forward and backward"]
                bound_s = alone ? tokens / alone + recompute_s : 0
                step_s = rate["memo, memo"] ? tokens / rate["memo, memo"] : 0
                printf "| %s | %s | %s | %s | %s | %s | %s |\n", tokens, ratio(rate["memo, memo"], rate["PyTorch, layers recomputed, eager"]),
                    ratio(rate["memo, memo"], saving) way(saving_way), ratio(rate["memo, memo"], best) way(best_way),
                    ratio(rate["memo, swap"], rate["memo, keep"]), ratio(rate["memo, memo, a graph"], rate["memo, memo"]),
                    ratio(step_s, bound_s)
            }' "$folder/trainer.md"
    done
    echo
    echo "Goals: at least 1.18, 1.20 and 1.22 times PyTorch with layers recomputed at 64K, 128K and 256K tokens, and 1.07, 1.045 and"
    echo "1.05 times its best way but keeping everything; swap at least 0.98 of keep; the step at most 1.06 of its products and"
    echo "attention plus what the plan recomputes."
}
