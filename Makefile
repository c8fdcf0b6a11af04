# memo is headers and needs no build; this builds and runs its examples, tests and benchmarks.
#
#   make run              a small GPT learns from real text in a device too small for it
#   make test             every test; the last line counts them
#   make help             all targets
#
# CC, CPPFLAGS, CFLAGS, LDFLAGS and LDLIBS are the user's and come last.  V=1 shows the commands.
# TESTS="test_swap test_plan" runs only these, ARGS="NAME --seed N" is given to each test program.
# scripts/setup.sh looks for optional libraries once, and writes build/config.mk.

.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := all

PREFIX       ?= /usr/local
FUZZ_SECONDS ?= 60
# 0: another seed each time; a push takes 1, so that the same tree finds the same.
FUZZ_SEED ?= 0
RUN_FLAGS    ?= --demo

ifeq ($(origin CC),default)
CC := $(shell for c in cc gcc clang; do command -v $$c >/dev/null 2>&1 && echo $$c && exit; done; echo cc)
endif
export CC CPPFLAGS CFLAGS

# A variant builds the test programs in its own folder, with its own flags.
#   asan | ubsan | asan-ubsan | tsan | valgrind | coverage | strict
VARIANT :=
BUILD   := build$(if $(VARIANT),/$(VARIANT))

HEADERS  := memo.h memo_plan.h memo_cuda.cuh memo_sp.h
SOURCES  := $(wildcard src/memo*.* src/*/*.h src/*/*/*.h)
EXTRAS   := $(wildcard extras/*.h extras/*.hpp)
EXAMPLES := $(patsubst %.c,build/examples/%,$(notdir $(wildcard examples/*.c examples/tools/*.c))) \
	build/examples/train_gpt build/examples/tmp_plan
BENCHES  := $(patsubst bench/%.c,build/bench/%,$(filter-out bench/link_bits.c,$(wildcard bench/*.c)))
# Tests lie in folders, by the header or program that they test; their programs and logs do not.
MPI_TESTS := $(patsubst %.c,build/mpi/tests/%,$(notdir $(wildcard tests/*/test_*_mpi.c)))
FUZZERS  := $(patsubst %,build/fuzz/%,$(notdir $(basename $(wildcard tests/*/fuzz_*.c tests/tools/fuzz_*.py))))
# Programs over MPI are built by test-mpi.
TESTS    := $(sort $(filter-out test_%_mpi,$(notdir $(basename $(wildcard tests/*/test_*.c tests/*/test_*.sh)))))
TEST_PROGRAMS := $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(wildcard $(TESTS:%=tests/*/%.c))))
# Test scripts build their own programs, so they run without a variant only.
TEST_SCRIPTS  := $(if $(VARIANT),,$(wildcard $(TESTS:%=tests/*/%.sh)))
vpath test_%.c $(wildcard tests/*)
vpath fuzz_%.c $(wildcard tests/*)
FORMATTED := $(SOURCES) $(wildcard extras/*.h extras/*.hpp examples/*.cpp examples/*.[ch] examples/*/*.[ch] examples/*.cu examples/gpt/*/*.[ch] examples/gpt/*/*.cu tests/*/*.[ch] tests/cuda/*.cu tests/*/*.cpp bench/*.[ch] bench/*/*.[ch] bench/*.cu)

# These targets need no compiler, so they skip the set-up.
NO_SETUP := help clean format format-check install uninstall release setup
ifneq ($(filter-out $(NO_SETUP),$(or $(MAKECMDGOALS),all)),)
ifeq ($(shell mkdir -p build 2>/dev/null && test -w build && echo yes),)
$(error $(CURDIR)/build cannot be written; copy the project to a folder that can)
endif
include build/config.mk $(if $(SOURCES),build/joined)
endif

# The headers are joined from src/ when a room of it is newer.
build/joined: $(SOURCES) scripts/amalgamate
	@mkdir -p $(@D)
	@scripts/amalgamate
	@: >$@

# If the set-up fails, make ends with the message of the set-up alone: config.mk holds it until make reads it.
build/config.mk: scripts/setup.sh
	@mkdir -p $(@D)
	@sh scripts/setup.sh $@ 2>$@.fault || { echo 'define setup_fault'; sed 's/\$$/$$$$/g' $@.fault; \
		echo endef; echo '$$(shell rm -f $@)$$(error $$(setup_fault))'; } >$@
	@rm -f $@.fault

# ---- flags ----

Q := $(if $(V),,@)
# WERROR=1 applies to the plain build only: under sanitizers gcc's warnings of uninitialized values are wrong.
WARNINGS = -Wall -Wextra -Wpedantic -Wconversion -Wshadow $(if $(WERROR),$(if $(VARIANT),,-Werror))
# -g1: lines for the reports of sanitizers; with variables a quarter more time goes into compiling (CFLAGS=-g has them).
FLAGS    = -std=c99 -g1 -I. -Iexamples $(WARNINGS) -pthread

# Compiling takes most of the time of a test run, so tests are built with -O1; their library, which plans, with -O2.
OPTIMIZE_TESTS = $(or $(OPTIMIZE_$(VARIANT)),-O1)
OPTIMIZE_asan       := -O1 -fsanitize=address -fno-omit-frame-pointer
OPTIMIZE_ubsan      := -O1 -fsanitize=undefined -fno-sanitize-recover=all
OPTIMIZE_asan-ubsan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
# tests/faults.sh runs these programs.
OPTIMIZE_faults     := $(OPTIMIZE_asan-ubsan) -DMEMO_TEST_FAULTS -include tests/support/scarce.h
OPTIMIZE_tsan       := -O1 -fsanitize=thread
OPTIMIZE_valgrind   := -O1 -DMEMO_TEST_VALGRIND
OPTIMIZE_coverage   := -O0 --coverage

# A race detector cannot see into OpenBLAS, and valgrind is slow in it: these variants use the built-in GEMM.
BLAS_TESTS = $(if $(VARIANT),,$(BLAS_CFLAGS))
BLAS_TESTS_LIBS = $(if $(VARIANT),,$(BLAS_LIBS))

WRAPPER_valgrind := valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,possible --fair-sched=yes
WRAPPER_strict   := env FAKE_CUDA_MODE=strict
# ThreadSanitizer needs fixed address ranges, which address randomization may occupy.
WRAPPER_tsan = $(shell setarch -R true 2>/dev/null && echo setarch -R)

# $(call build,FLAGS,LIBRARIES): one source file to one program.  A failed build removes the older program, so that no
# test runs it.
define build
@mkdir -p $(@D)
@echo "  CC    $@"
$(Q)$(CC) $(FLAGS) -MMD -MP -MF $@.d -MT $@ $(1) $(CPPFLAGS) $(CFLAGS) $< -o $@ \
	$(LDFLAGS) $(2) $(LDLIBS) -lm || { rm -f $@; exit 1; }
endef

# ---- programs ----

all: examples bench-programs test-programs ## build examples, benchmarks and test programs

examples: $(EXAMPLES) ## build examples/ into build/examples
test-programs: $(TEST_PROGRAMS) ## build tests/ alone
bench-programs: $(BENCHES) build/bench/paper_tables ## build bench/ alone

# -O2 is for programs that plan or compute much, not for the short examples.
# With MEMO_STATIC, functions that a program does not call cost no compile time.
OPTIMIZE_EXAMPLE = $(if $(filter 0% 1% 2% 3% comm_mpi draw_memory,$(@F)),-O1,-O2 $(NATIVE))
build/examples/%: examples/%.c build/config.mk Makefile
	$(call build,$(OPTIMIZE_EXAMPLE) -DMEMO_STATIC $(LP_SOLVE_CFLAGS),$(LP_SOLVE_LIBS))
build/examples/%: examples/tools/%.c build/config.mk Makefile
	$(call build,$(OPTIMIZE_EXAMPLE) -DMEMO_STATIC $(LP_SOLVE_CFLAGS),$(LP_SOLVE_LIBS))
# The tool's first name.
build/examples/tmp_plan: build/examples/degrees_plan
	@ln -sf degrees_plan $@
# memo's implementation is compiled separately.  -O2 makes attention over ranks three times as fast as -O1 (--ring 2), -O3 no faster.
build/examples/memo.o: examples/gpt/memo.c build/config.mk Makefile
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(CC) $(FLAGS) -MMD -MP -MF $@.d -MT $@ -O2 $(NATIVE) $(LP_SOLVE_CFLAGS) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
TRAINER       := $(patsubst examples/gpt/%.c,%.o,$(wildcard examples/gpt/*/*.c))
TRAINER_FLAGS := -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE $(JSON_CFLAGS)
# $(call object,FLAGS): one source file of the trainer.  $(call link,LIBRARIES): all objects to the program.
define object
@mkdir -p $(@D)
@echo "  CC    $@"
$(Q)$(CC) $(FLAGS) $(TRAINER_FLAGS) -MMD -MP -MF $@.d -MT $@ $(1) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
endef
define link
@echo "  LD    $@"
$(Q)$(CC) -pthread $(CFLAGS) $(filter %.o,$^) -o $@ $(LDFLAGS) $(1) $(JSON_LIBS) $(LDLIBS) -lm || { rm -f $@; exit 1; }
endef
build/examples/gpt/%.o: examples/gpt/%.c build/config.mk Makefile
	$(call object,-O3 $(NATIVE) $(BLAS_CFLAGS))
# The trainer loads OpenBLAS itself, so that it can refuse to: see gpt/run/device.h.
BLAS_LOADED = $(filter-out -lopenblas,$(BLAS_LIBS)) $(if $(BLAS_CFLAGS),-ldl)
build/examples/train_gpt: $(TRAINER:%=build/examples/gpt/%) build/examples/memo.o
	$(call link,$(LP_SOLVE_LIBS) $(BLAS_LOADED))
# The same on GPUs, with a process per rank, over NCCL if it is found.
CUDA_HOME ?= /usr/local/cuda
NCCL_HOME ?= $(firstword $(foreach home,$(CUDA_HOME) /usr,$(if $(wildcard $(home)/include/nccl.h),$(if \
	$(wildcard $(home)/lib64/libnccl.so $(home)/lib/libnccl.so $(home)/lib/*/libnccl.so),$(home)))))
NCCL_FLAGS = -isystem $(CUDA_HOME)/include $(if $(NCCL_HOME),-DMEMO_CUDA_NCCL -isystem $(NCCL_HOME)/include)
NCCL_LIBS  = $(if $(NCCL_HOME),-L$(NCCL_HOME)/lib64 -L$(NCCL_HOME)/lib -lnccl)
build/examples/gpt_kernels_cuda.o: examples/gpt/kernels/cuda.cu $(wildcard examples/gpt/kernels/*.h) $(HEADERS) Makefile
	@mkdir -p $(@D)
	@echo "  NVCC  $@"
	$(Q)nvcc -arch=$(CUDA_ARCH) -std=c++17 -O3 -I. -Iexamples -DMEMO_CUDA_IMPLEMENTATION $(NCCL_FLAGS) -c $< -o $@
build/examples/memo_cuda.o: examples/gpt/memo.c build/config.mk Makefile
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(CC) $(FLAGS) -MMD -MP -MF $@.d -MT $@ -O1 $(LP_SOLVE_CFLAGS) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
# CUDNN=folder of cudnn-frontend: attention is cuDNN's.  The program is built again when CUDNN changes.
CUDNN ?=
export CUDNN
CUDNN_OBJECTS = $(if $(CUDNN),build/examples/gpt_cudnn.o build/examples/cudnn_graphs.o)
build/examples/cudnn.folder: always
	@mkdir -p $(@D)
	@echo '$(CUDNN)' | cmp -s - $@ || echo '$(CUDNN)' >$@
always:
# -O1, because most of the frontend is host code that runs once.  It is compiled apart from the programs that use it.
build/examples/cudnn_graphs.o: examples/cudnn_graphs.h examples/cudnn_scratch.h build/examples/cudnn.folder Makefile
	@echo "  NVCC  $@"
	$(Q)nvcc -x c++ -std=c++17 -O1 -DATTENTION_GRAPHS -I. -Iexamples -I"$(CUDNN)/include" -c $< -o $@
build/examples/gpt_cudnn.o: examples/gpt/kernels/cudnn.cu $(wildcard examples/cudnn_*.h examples/gpt/kernels/*.h) $(HEADERS) build/examples/cudnn.folder Makefile
	@echo "  NVCC  $@"
	$(Q)nvcc -arch=$(CUDA_ARCH) -std=c++17 -O1 -DATTENTION_LINKED -I. -Iexamples -c $< -o $@
build/examples/gpt_cuda/%.o: examples/gpt/%.c build/examples/cudnn.folder build/config.mk Makefile
	$(call object,-O3 -DTRAIN_CUDA $(if $(CUDNN),-DTRAIN_CUDNN) $(NCCL_FLAGS))
build/examples/train_gpt_cuda: $(TRAINER:%=build/examples/gpt_cuda/%) build/examples/gpt_kernels_cuda.o $(CUDNN_OBJECTS) build/examples/memo_cuda.o
	$(call link,$(LP_SOLVE_LIBS) -L$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/lib $(if $(CUDNN),-lcudnn -lnvrtc) -lcublasLt -lcudart -lstdc++ $(NCCL_LIBS))
# The same over MPI, with a process per rank.  One source knows MPI; the other objects are those of the host's program.
build/examples/gpt_mpi/run/ranks.o: examples/gpt/run/ranks.c build/mpi/compiler build/config.mk Makefile
	$(call object,-O3 -DTRAIN_MPI $(NATIVE) $(BLAS_CFLAGS))
build/examples/train_gpt_mpi: $(patsubst %,build/examples/gpt/%,$(filter-out run/ranks.o,$(TRAINER))) \
		build/examples/gpt_mpi/run/ranks.o build/examples/memo.o
	$(call link,$(LP_SOLVE_LIBS) $(BLAS_LOADED))
build/examples/gpt_mpi/run/ranks.o build/examples/train_gpt_mpi: private override CC = $(MPICC)
build/bench/%: bench/%.c build/config.mk Makefile
	$(call build,-O3 -DMEMO_STATIC $(NATIVE) $(LP_SOLVE_CFLAGS),$(LP_SOLVE_LIBS))
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
build/bench/%: bench/papers/%.c build/config.mk Makefile
	$(call build,-O3 -DMEMO_STATIC $(NATIVE) $(LP_SOLVE_CFLAGS),$(LP_SOLVE_LIBS))

# The implementation is compiled once for all tests of a variant.  A test that uses private functions defines
# MEMO_IMPLEMENTATION and MEMO_STATIC itself, and takes nothing from the archive.  Invariants are asserted in all tests.
# In the variant strict the host device is memo_cuda.cuh on a strict stand-in of CUDA; its library is the plain one.
LIB_FOLDER := $(if $(filter strict,$(VARIANT)),build,$(BUILD))/tests
TEST_LIB   := $(LIB_FOLDER)/lib.a
INSTEAD    := $(if $(filter strict,$(VARIANT)),$(BUILD)/tests/instead.o $(BUILD)/tests/fake_cuda.o)
WRAPS       = $(if $(INSTEAD),$(foreach function,create destroy launch sleep get_stats,-Xlinker --wrap=memo_host_device_$(function)) $(INSTEAD) -lstdc++)
TEST_LIBS   = $(WRAPS) $(TEST_LIB) $(LP_SOLVE_LIBS)
ASSERTS    := '-DMEMO_ASSERT(condition)=assert(condition)'
TEST_FLAGS := -Itests/support -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE $(ASSERTS) $(if $(INSTEAD),-DMEMO_TEST_STRICT)
$(LIB_FOLDER)/lib/%.o: private OPTIMIZE_TESTS = $(or $(OPTIMIZE_$(VARIANT)),-O2)
$(LIB_FOLDER)/lib/%.o: tests/lib/%.c build/config.mk Makefile
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(CC) $(FLAGS) -MMD -MP -MF $@.d -MT $@ $(OPTIMIZE_TESTS) $(ASSERTS) $(LP_SOLVE_CFLAGS) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
$(TEST_LIB): $(patsubst tests/%.c,$(LIB_FOLDER)/%.o,$(wildcard tests/lib/*.c))
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/tests/%.o: tests/cuda/%.cpp Makefile
	@mkdir -p $(@D)
	@echo "  CXX   $@"
	$(Q)$(CXX) -std=c++17 -g1 -O1 -I. -Itests/support -isystem $(CUDA_HOME)/include $(ASSERTS) -MMD -MP -MF $@.d -MT $@ -c $< -o $@

# Programs with their own implementation that compute little: the optimizer would take longer than it saves, under sanitizers too.
UNOPTIMIZED := arena comm corpus descs hooks host_device law layout_plan mistakes models plan_file recorder sharding spill trace \
	train_faults
$(UNOPTIMIZED:%=$(BUILD)/tests/test_%): private OPTIMIZE_TESTS = $(or $(OPTIMIZE_$(VARIANT):-O1%=-O0%),-O0)

$(TEST_PROGRAMS): $(TEST_LIB) $(INSTEAD)
$(BUILD)/tests/%: %.c build/config.mk Makefile
	$(call build,$(OPTIMIZE_TESTS) $(TEST_FLAGS) $(LP_SOLVE_CFLAGS),$(TEST_LIBS))
$(BUILD)/tests/test_gpt%: test_gpt%.c build/config.mk Makefile
	$(call build,$(OPTIMIZE_TESTS) $(TEST_FLAGS) $(LP_SOLVE_CFLAGS) $(BLAS_TESTS),$(TEST_LIBS) $(BLAS_TESTS_LIBS))
# Tests of files in JSON.
$(BUILD)/tests/test_safetensors $(BUILD)/tests/test_models: $(BUILD)/tests/%: %.c build/config.mk Makefile
	$(call build,$(OPTIMIZE_TESTS) $(TEST_FLAGS) $(JSON_CFLAGS),$(TEST_LIBS) $(JSON_LIBS))
# In double precision, in which the plain model shows every mistake.
$(BUILD)/tests/test_gpt_gradients: tests/trainer/test_gpt_gradients.c build/config.mk Makefile
	$(call build,$(OPTIMIZE_TESTS) $(TEST_FLAGS) -DGPT_DOUBLE $(LP_SOLVE_CFLAGS),$(TEST_LIBS))

-include $(wildcard $(BUILD)/tests/*.d $(LIB_FOLDER)/lib/*.d build/examples/*.d build/examples/gpt*/*/*.d build/bench/*.d build/fuzz/*.d build/mpi/tests/*.d)

# ---- run ----

# On the GPU where there is one, and nvcc.
RUN_CUDA := $(if $(wildcard /dev/nvidia0),$(shell command -v nvcc >/dev/null 2>&1 && echo _cuda))
RUN_GPU := on the GPU of this machine, with $(if $(CUDNN),cuDNN's,the built-in) attention
run: build/examples/train_gpt$(RUN_CUDA) ## train a small GPT under every policy for about a minute, on a GPU if there is one; pictures in build/run
	@mkdir -p build/run
	@$(if $(RUN_CUDA),echo "$(RUN_GPU)";) $< $(RUN_FLAGS)

bench: bench-programs ## run the benchmarks
	@failed=; for program in $(BENCHES); do echo; echo "$$program"; $$program || failed="$$failed $$program"; done; \
	[ -z "$$failed" ] || { echo "missed a criterion, or found no data:$$failed"; exit 1; }

papers: build/bench/paper_tables ## compute the tables of the three papers, beside the published figures
	@$<

# ---- tests ----

# A name of TESTS that is no test would pass in silence.
STRAY_TESTS = $(wildcard tests/test_* tests/fuzz_*)
UNKNOWN_TESTS = $(strip $(foreach test,$(TESTS),$(if $(wildcard tests/*/$(test).c tests/*/$(test).sh),,$(test))))

# As many compilers at a time as there are processors, unless the user sets -j.
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2))

# Scripts run the trainer, the tools and one example; test_examples.sh builds the short ones by their heads.
SCRIPTED := $(filter-out build/examples/0% build/examples/1% build/examples/2% build/examples/3% build/examples/comm_mpi,$(EXAMPLES)) \
	build/examples/14_find_a_race

# A separate make builds the programs, so that a program that does not build counts as a failure and the others run.
test: ## build and run the tests; the last line counts them
	@[ -z "$(UNKNOWN_TESTS)" ] || { echo "make $@: TESTS: no such test ($(UNKNOWN_TESTS)); \`ls tests/*/test_*\` shows all" >&2; exit 1; }
	@[ -z "$(STRAY_TESTS)" ] || { echo "make $@: $(STRAY_TESTS): lies in no folder of tests/, so nothing runs it" >&2; exit 1; }
	-@$(MAKE) --no-print-directory -k $(JOBS) VARIANT=$(VARIANT) test-programs $(if $(TEST_SCRIPTS),$(SCRIPTED))
	@MEMO_TEST_WRAPPER="$(WRAPPER_$(VARIANT))" MEMO_TEST_ARGS="$(ARGS)" \
	TSAN_OPTIONS="history_size=7 $$TSAN_OPTIONS" \
	sh tests/run.sh $(BUILD)/logs $(TEST_SCRIPTS) $(TEST_PROGRAMS)

test-all: ## the same with every compiler and standard, every CUDA source, the largest models, and all random cases; MEMO_TEST_ALL=1/10: a tenth of these
	@MEMO_TEST_ALL=$${MEMO_TEST_ALL:-1} $(MAKE) --no-print-directory test

# $(call need,TOOL,PACKAGE): TOOL is a command
need = command -v $(1) >/dev/null 2>&1 || { echo "make $@: needs $(1) (apt-get install $(2))" >&2; exit 1; }

asan: ## the tests under AddressSanitizer (leaks too)
ubsan: ## the tests under UndefinedBehaviorSanitizer
asan-ubsan: ## both at once
tsan: ## the tests under ThreadSanitizer
asan ubsan asan-ubsan tsan:
	@mkdir -p build/$@
	@echo 'int main(void) { return 0; }' >build/$@/probe.c
	@$(CC) $(OPTIMIZE_$@) build/$@/probe.c -o build/$@/probe 2>/dev/null || { echo "make $@: $(CC) lacks the runtime of" \
		"$(filter -fsanitize=%,$(OPTIMIZE_$@)) (with gcc: apt-get install libasan8 libubsan1 libtsan2; with clang: libclang-rt-dev)" >&2; exit 1; }
	+@$(MAKE) --no-print-directory VARIANT=$@ test
strict: ## tests of sessions, sequences and the trainer on a strict stand-in of CUDA (tests/cuda/queues.h); STRICT_SEED=n, STRICT_QUEUES=n
	@[ -e $(CUDA_HOME)/include/cuda.h ] || { echo "make $@: needs CUDA's headers in CUDA_HOME ($(CUDA_HOME))" >&2; exit 1; }
	+@$(MAKE) --no-print-directory VARIANT=strict TESTS="$(if $(filter command%,$(origin TESTS)),$(TESTS),$$(LIST=1 bash .ci/night strict | xargs))" test
valgrind: ## the tests under valgrind, leaks are errors
	@$(call need,valgrind,valgrind)
	@$(MAKE) --no-print-directory VARIANT=valgrind MEMO_TEST_TIMEOUT=3600 test

# On a machine without a GPU the programs build, and their tests count as skipped.
CUDA_ARCH  ?= native
# With CUDNN the tests of the trainer's model run with cuDNN too, and examples/13_cudnn_attention.cu compiles.
CUDA_TESTS := $(patsubst tests/cuda/%.cu,build/cuda-tests/%,$(wildcard tests/cuda/test_*.cu))
# Calls that must not happen inside a step are intercepted by the linker.
CUDA_WRAPS  = $(shell sh tests/cuda/cuda_wraps.sh)

build/cuda-tests/%: tests/cuda/%.cu tests/cuda/cuda_test.h tests/support/memo_test.h $(HEADERS) Makefile
	@mkdir -p $(@D)
	@echo "  NVCC  $@"
	$(Q)nvcc -arch=$(CUDA_ARCH) -std=c++17 -O2 -g -I. -Itests/support $(ASSERTS) $(if $(findstring test_step,$@),$(CUDA_WRAPS)) $(if $(findstring test_gpt,$@),-Iexamples $(if $(CUDNN),-DTEST_CUDNN -I"$(CUDNN)/include" -lcudnn -lnvrtc) -lcublasLt) $< -o $@

test-cuda: ## compile memo_cuda.cuh with nvcc; run its tests if there is a GPU
	@command -v nvcc >/dev/null 2>&1 || { echo "make $@: needs nvcc (apt-get install nvidia-cuda-toolkit, or developer.nvidia.com/cuda-downloads)" >&2; exit 1; }
	-@$(MAKE) --no-print-directory -k $(CUDA_TESTS)
	@MEMO_TEST_ALL=1 MEMO_TEST_ARGS=nvcc sh tests/run.sh build/logs tests/tools/test_compile.sh
	@MEMO_TEST_ALL=1 MEMO_TEST_JOBS=1 sh tests/run.sh build/logs tests/cuda/test_cuda.sh $(CUDA_TESTS)

device-pack: ## build what bench/device.sh runs, for CUDA_ARCH (sm_90) and without a GPU, to take along
	@CUDA_ARCH=$(if $(filter-out native,$(CUDA_ARCH)),$(CUDA_ARCH),sm_90) sh bench/device.sh pack

bench-cuda: ## on a machine with a GPU: CUDA tests, compute-sanitizer, benchmarks, the trainer; writes bench/results
	@failed=; for part in A B "C 65536" "C 131072" "C 262144"; do \
	    sh bench/device.sh $$part || failed="$$failed $$part"; done; [ -z "$$failed" ]

# Another MPI: make test-mpi MPICC=mpicc.mpich MPIEXEC=mpirun.mpich.  Its programs are built again when MPICC changes.
# Open MPI needs these options to run as root and with more ranks than processors; other MPIs lack them.
MPICC   ?= mpicc
MPIEXEC ?= mpirun
MPIRUN = $(MPIEXEC) $(shell $(MPIEXEC) --version 2>/dev/null | grep -q 'Open MPI' && echo --allow-run-as-root --oversubscribe)

build/mpi/compiler: always
	@mkdir -p $(@D)
	@echo '$(MPICC)' | cmp -s - $@ || echo '$(MPICC)' >$@
build/mpi/tests/%: %.c build/mpi/compiler Makefile
	$(call build,-O2 -Itests/support $(ASSERTS))
build/mpi/tests/%: override CC = $(MPICC)

test-mpi: ## the tests of comm over MPI, on 4 ranks, and the trainer's
	@$(call need,$(MPICC),libopenmpi-dev)
	@$(call need,$(MPIEXEC),openmpi-bin)
	-@$(MAKE) --no-print-directory -k $(MPI_TESTS) build/examples/train_gpt build/examples/train_gpt_mpi
	@MEMO_TEST_JOBS=1 MEMO_TEST_WRAPPER="$(MPIRUN) -n 4" MPIRUN="$(MPIRUN)" MEMO_TEST_ARGS="$(ARGS)" \
	sh tests/run.sh build/mpi/logs $(MPI_TESTS) tests/trainer/mpi_train_gpt.sh

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
fuzz: ## fuzz descs, calls of sessions, options, the readers of traces, plans, schedules, models, proofs and XLA, and the planner, FUZZ_SECONDS each (60)
	@$(call need,clang,clang)
	@mkdir -p build/fuzz && echo 'int LLVMFuzzerTestOneInput(const char* d, long n) { return n < 0 && *d; }' >build/fuzz/probe.c
	@clang -fsanitize=fuzzer,address build/fuzz/probe.c -o build/fuzz/probe 2>/dev/null || \
		{ echo "make $@: clang lacks libFuzzer (apt-get install libclang-rt-dev)" >&2; exit 1; }
	@rm -f build/fuzz/*.passed
	-@$(MAKE) --no-print-directory -k $(JOBS) $(FUZZERS:=.passed)
	@failed=; for program in $(FUZZERS); do [ -e $$program.passed ] || failed="$$failed $${program##*/}"; done; \
	[ -z "$$failed" ] || { echo "make $@: failed:$$failed" >&2; exit 1; }

# The first folder of a fuzzer gets what it finds: it lies in build.
build/fuzz/%.passed: build/fuzz/%
	@kind=$*; kind=$${kind#fuzz_}; \
	mkdir -p build/fuzz/corpus/$$kind; \
	if $< -max_total_time=$(FUZZ_SECONDS) -seed=$(FUZZ_SEED) -max_len=4096 -timeout=300 -verbosity=0 -print_final_stats=1 \
		-artifact_prefix=build/fuzz/$$kind- build/fuzz/corpus/$$kind tests/corpus/$$kind >build/fuzz/$$kind.log 2>&1; then \
		sed -n "s/^stat::number_of_executed_units: */  $*, $(FUZZ_SECONDS) s, nothing found; inputs tried: /p" build/fuzz/$$kind.log; \
		touch $@; \
	else \
		tail -n 40 build/fuzz/$$kind.log; \
		echo "$*: fix the bug and add the input, build/fuzz/$$kind-*, in tests/corpus/$$kind" >&2; \
		exit 1; \
	fi

fuzz-planted: ## plant six bugs for each fuzzer (tests/fuzz_planted.txt), each of which it must find in 5 s, from two seeds; ARGS="session": some
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

coverage: ## line coverage of the headers by the tests (gcc and gcov)
	@$(call need,gcov,gcc)
	@rm -rf build/coverage
	@$(MAKE) --no-print-directory VARIANT=coverage CC=gcc test
	@sh scripts/coverage.sh build/coverage/tests memo.h memo_plan.h memo_sp.h $(EXTRAS)

format: ## format all C sources with clang-format
	@$(call need,clang-format,clang-format)
	clang-format -i $(FORMATTED)
	@scripts/amalgamate

format-check: ## compare the headers with src/, and rooms with their includes; list the sources that are not formatted, too wide lines, long functions without paragraphs; decisions that grow
	@$(call need,clang-format,clang-format)
	@scripts/amalgamate --check
	@scripts/rooms
	@scripts/decisions --check
	@clang-format --dry-run --Werror $(FORMATTED) && echo "format-check: $(words $(FORMATTED)) files, all in style"
	@sh tests/tools/test_compile.sh style:

# ---- installation ----

VERSION = $(shell sed -n 's/^\#define MEMO_VERSION_[MP][A-Z]* *\([0-9][0-9]*\).*/\1/p' memo.h | paste -sd. -)

release: ## make a release VERSION=1.2.3: headers, changelog, commit, tag, archive and checksum; pushes nothing
	@sh scripts/release.sh "$(VERSION)" $(HEADERS:%=src/%) $(EXTRAS)

# memo.pc names both folders of headers.
INSTALLED = $(HEADERS:%=include/%) $(EXTRAS:%=include/memo/%) share/pkgconfig/memo.pc \
	share/cmake/memo/memo-config.cmake share/cmake/memo/memo-config-version.cmake

install: ## install headers, memo.pc and the CMake package under PREFIX (/usr/local), below DESTDIR
	mkdir -p "$(DESTDIR)$(PREFIX)/include/memo/extras" "$(DESTDIR)$(PREFIX)/share/pkgconfig" \
		"$(DESTDIR)$(PREFIX)/share/cmake/memo"
	cp $(HEADERS) "$(DESTDIR)$(PREFIX)/include/"
	cp $(EXTRAS) "$(DESTDIR)$(PREFIX)/include/memo/extras/"
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' memo.pc.in >"$(DESTDIR)$(PREFIX)/share/pkgconfig/memo.pc"
	cp cmake/memo-config.cmake "$(DESTDIR)$(PREFIX)/share/cmake/memo/"
	sed -e 's|@VERSION@|$(VERSION)|' cmake/memo-config-version.cmake.in \
		>"$(DESTDIR)$(PREFIX)/share/cmake/memo/memo-config-version.cmake"
	cd "$(DESTDIR)$(PREFIX)" && chmod 644 $(INSTALLED)
uninstall: ## remove the installed files
	cd "$(DESTDIR)$(PREFIX)" && rm -f $(INSTALLED) && \
		{ rmdir include/memo/extras include/memo share/cmake/memo 2>/dev/null || true; }

# ---- the rest ----

setup: ## look for lp_solve and OpenBLAS again
	@sh scripts/setup.sh build/config.mk
clean: ## remove build/
	rm -rf build
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1 \2/p' Makefile | while read -r target text; do \
		printf '  %-14s %s\n' "$$target" "$$text"; done

.PHONY: all examples test-programs bench-programs run bench papers test test-all asan ubsan asan-ubsan tsan strict valgrind \
	test-cuda bench-cuda test-mpi fuzz fuzz-planted planted mutation portability analyze coverage format format-check install uninstall setup clean help always
