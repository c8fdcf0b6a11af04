# What continuous integration calls beside the targets of Makefile:
#
#   make -f .ci/checks.mk fuzz FUZZ_SECONDS=60      from the project's folder; `help` lists all targets

.DEFAULT_GOAL := help

# In the variant strict the host device is memo_cuda.cuh on a strict stand-in of CUDA; its library is the plain one.
ifeq ($(VARIANT),strict)
TEST_LIB     := build/tests/lib.a
TEST_DEFINES := -DMEMO_TEST_STRICT
INSTEAD      := build/strict/tests/instead.o build/strict/tests/fake_cuda.o
WRAPS        := $(foreach function,create destroy launch sleep get_stats,-Xlinker --wrap=memo_host_device_$(function)) $(INSTEAD) -lstdc++
endif
include Makefile

FUZZ_SECONDS ?= 60
# 0: another seed each time; a push takes 1, so that the same tree finds the same.
FUZZ_SEED ?= 0
MPI_TESTS := $(patsubst %.c,build/mpi/tests/%,$(notdir $(wildcard tests/*/test_*_mpi.c)))
FUZZERS   := $(patsubst %,build/fuzz/%,$(notdir $(basename $(wildcard tests/*/fuzz_*.c tests/tools/fuzz_*.py))))
checks     = $(MAKE) --no-print-directory -f .ci/checks.mk
vpath fuzz_%.c $(wildcard tests/*)

# ---- other tests ----

OPTIMIZE_valgrind := -O1 -DMEMO_TEST_VALGRIND
WRAPPER_valgrind := valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,possible --fair-sched=yes
valgrind: ## the tests under valgrind, leaks are errors
	@$(call need,valgrind,valgrind)
	+@$(checks) VARIANT=valgrind MEMO_TEST_TIMEOUT=3600 test

WRAPPER_strict := env FAKE_CUDA_MODE=strict
strict: ## tests of sessions, sequences and the trainer on a strict stand-in of CUDA (tests/cuda/queues.h); STRICT_SEED=n, STRICT_QUEUES=n
	@[ -e $(CUDA_HOME)/include/cuda.h ] || { echo "make $@: needs CUDA's headers in CUDA_HOME ($(CUDA_HOME))" >&2; exit 1; }
	+@$(checks) VARIANT=strict TESTS="$(if $(filter command%,$(origin TESTS)),$(TESTS),$$(LIST=1 bash .ci/night strict | xargs))" test

# Open MPI needs these options to run as root and with more ranks than processors; other MPIs lack them.
MPIEXEC ?= mpirun
MPIRUN = $(MPIEXEC) $(shell $(MPIEXEC) --version 2>/dev/null | grep -q 'Open MPI' && echo --allow-run-as-root --oversubscribe)
build/mpi/tests/%: %.c build/mpi/compiler Makefile
	$(call build,-O2 -Itests/support $(ASSERTS))
build/mpi/tests/%: override CC = $(MPICC)

test-mpi: ## the tests of comm over MPI, on 4 ranks, and the trainer's
	@$(call need,$(MPICC),libopenmpi-dev)
	@$(call need,$(MPIEXEC),openmpi-bin)
	-+@$(checks) -k $(MPI_TESTS) build/examples/train_gpt build/examples/train_gpt_mpi
	@MEMO_TEST_JOBS=1 MEMO_TEST_WRAPPER="$(MPIRUN) -n 4" MPIRUN="$(MPIRUN)" MEMO_TEST_ARGS="$(ARGS)" \
	sh tests/run.sh build/mpi/logs $(MPI_TESTS) tests/trainer/mpi_train_gpt.sh

# On a machine without a GPU the programs build, and their tests count as skipped.
# With CUDNN the tests of the trainer's model run with cuDNN too, and examples/13_cudnn_attention.cu compiles.
CUDA_TESTS := $(patsubst tests/cuda/%.cu,build/cuda-tests/%,$(wildcard tests/cuda/test_*.cu))
# Calls that must not happen inside a step are intercepted by the linker.
CUDA_WRAPS  = $(shell sh tests/cuda/cuda_wraps.sh)

build/cuda-tests/%: tests/cuda/%.cu tests/cuda/cuda_test.h tests/support/memo_test.h $(HEADERS) Makefile
	$(call nvcc,-arch=$(CUDA_ARCH) -O2 -g -Itests/support $(ASSERTS) $(if $(findstring test_step,$@),$(CUDA_WRAPS)) \
		$(if $(findstring test_gpt,$@),$(if $(CUDNN),-DTEST_CUDNN -I"$(CUDNN)/include" -lcudnn -lnvrtc) -lcublasLt))

test-cuda: ## compile memo_cuda.cuh with nvcc; run its tests if there is a GPU
	@command -v nvcc >/dev/null 2>&1 || { echo "make $@: needs nvcc (apt-get install nvidia-cuda-toolkit, or developer.nvidia.com/cuda-downloads)" >&2; exit 1; }
	-+@$(checks) -k $(CUDA_TESTS)
	@MEMO_TEST_ALL=1 MEMO_TEST_ARGS=nvcc sh tests/run.sh build/logs tests/tools/test_compile.sh
	@MEMO_TEST_ALL=1 MEMO_TEST_JOBS=1 sh tests/run.sh build/logs tests/cuda/test_cuda.sh $(CUDA_TESTS)

# ---- other checks ----

# The parser of options computes little, and the trainer beside it takes a minute to optimize.
build/fuzz/fuzz_options: private OPTIMIZE_FUZZ = -O0
# What it reads is in JSON; without cJSON it tries nothing.
build/fuzz/fuzz_models: private FUZZ_LIBS = $(JSON_CFLAGS) $(JSON_LIBS)
build/fuzz/%: %.c Makefile
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)clang -std=c99 -g1 $(or $(OPTIMIZE_FUZZ),-O1) -I. -Iexamples -Itests/support -pthread -MMD -MP -MF $@.d -MT $@ -fsanitize=fuzzer,address,undefined \
		-fno-sanitize-recover=all -DMEMO_STATIC= $(ASSERTS) $< -o $@ $(FUZZ_LIBS) -lm

# A fuzzer of a tool in Python: tests/support/fuzz.py takes the same arguments.
build/fuzz/%: tests/tools/%.py tests/support/fuzz.py
	@mkdir -p $(@D)
	@cp $< $@ && chmod +x $@

# All of them run, also if one does not build or finds something.  They run beside each other, as many as -j allows.
fuzz: ## fuzz descs, calls of sessions, options, the readers of traces, plans, schedules, models, proofs and XLA, and the planner, FUZZ_SECONDS of processor time each (60)
	@$(call need,clang,clang)
	@mkdir -p build/fuzz && echo 'int LLVMFuzzerTestOneInput(const char* d, long n) { return n < 0 && *d; }' >build/fuzz/probe.c
	@clang -fsanitize=fuzzer,address build/fuzz/probe.c -o build/fuzz/probe 2>/dev/null || \
		{ echo "make $@: clang lacks libFuzzer (apt-get install libclang-rt-dev)" >&2; exit 1; }
	@rm -f build/fuzz/*.passed
	-+@$(checks) -k $(JOBS) $(FUZZERS:=.passed)
	@failed=; for program in $(FUZZERS); do [ -e $$program.passed ] || failed="$$failed $${program##*/}"; done; \
	[ -z "$$failed" ] || { echo "make $@: failed:$$failed" >&2; exit 1; }

# The first folder of a fuzzer gets what it finds: it lies in build.  72: its seconds are over, see tests/support/fuzz.h.
build/fuzz/%.passed: build/fuzz/%
	@kind=$*; kind=$${kind#fuzz_}; \
	mkdir -p build/fuzz/corpus/$$kind; \
	$< -max_total_time=$(FUZZ_SECONDS) -seed=$(FUZZ_SEED) -max_len=4096 -timeout=300 -verbosity=0 -print_final_stats=1 \
		-artifact_prefix=build/fuzz/$$kind- build/fuzz/corpus/$$kind tests/corpus/$$kind >build/fuzz/$$kind.log 2>&1; \
	status=$$?; \
	if [ $$status -eq 0 ] || [ $$status -eq 72 ]; then \
		sed -n "s/^stat::number_of_executed_units: */  $*, $(FUZZ_SECONDS) s, nothing found; inputs tried: /p" build/fuzz/$$kind.log; \
		touch $@; \
	else \
		tail -n 40 build/fuzz/$$kind.log; \
		echo "$*: fix the bug and add the input, build/fuzz/$$kind-*, in tests/corpus/$$kind" >&2; \
		exit 1; \
	fi

fuzz-planted: ## plant six bugs for each fuzzer (tests/fuzz_planted.txt), each of which it must find in 5 s of processor time, from two seeds; ARGS="session": some
	@$(call need,clang,clang)
	@python3 tests/fuzz_planted.py $(ARGS)

portability: ## tests on ARM and on a big-endian machine under qemu, with musl, and the refusal of 32 bits
	@sh scripts/portability.sh

planted: build/config.mk ## plant changes in src/ (tests/planted.txt), each of which must trip an assertion; PARTS="memo/arena.h": some
	@sh tests/planted.sh $(PARTS)

mutation: ## change 40 lines of the rooms at random (ARGS="--seed N"), and count those that the tests see: tests/mutation.py
	@python3 tests/mutation.py $(ARGS)

analyze: ## clang --analyze, cppcheck, gcc -fanalyzer: each that is installed
	@sh scripts/analyze.sh

OPTIMIZE_coverage := -O0 --coverage
coverage: ## line coverage of the headers by the tests (gcc and gcov)
	@$(call need,gcov,gcc)
	@rm -rf build/coverage
	+@$(checks) VARIANT=coverage CC=gcc test
	@sh scripts/coverage.sh build/coverage/tests memo.h memo_plan.h memo_sp.h $(EXTRAS)

# ---- benchmarks ----

# It trains for minutes, and is no part of `make bench`.
build/bench/link_bits: build/examples/memo.o
build/bench/link_bits: bench/link_bits.c build/config.mk Makefile
	$(call build,-O3 $(NATIVE) $(TRAINER_FLAGS) $(BLAS_CFLAGS) build/examples/memo.o,$(LP_SOLVE_LIBS) $(BLAS_LOADED))
# PyTorch's caching allocator beside the arena, without a GPU: a stand-in answers its calls of CUDA.
TORCH ?= $(shell python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null)
build/bench/arena_pytorch: bench/arena.c tests/cuda/address_cuda.cpp bench/cuda_bench.h bench/median.h $(HEADERS) Makefile
	@[ -d "$(TORCH)/include/c10/cuda" ] || { echo "make $@: needs PyTorch for CUDA (TORCH=folder of the package)" >&2; exit 1; }
	@mkdir -p $(@D)
	@echo "  CXX   $@"
	$(Q)$(CXX) -std=c++17 -O3 -I. -DMEMO_STATIC -DARENA_TORCH -isystem "$(TORCH)/include" -isystem $(CUDA_HOME)/include \
		-x c++ bench/arena.c tests/cuda/address_cuda.cpp -x none -rdynamic -o $@ -L"$(TORCH)/lib" -Wl,-rpath,"$(TORCH)/lib" \
		-Wl,-rpath,$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/lib64 -lc10_cuda -lc10 -lpthread -lm

help: CHECKS := .ci/checks.mk
.PHONY: valgrind strict test-cuda test-mpi fuzz fuzz-planted portability planted mutation analyze coverage
-include $(wildcard build/fuzz/*.d build/mpi/tests/*.d)
