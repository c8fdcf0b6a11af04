# memo is headers and needs no build; this builds and runs its examples, tests and benchmarks.
#
#   make run              a small GPT learns from real text in a device too small for it
#   make test             every test; the last line counts them
#   make help             all targets; `make -f .ci/checks.mk help` also what continuous integration calls
#
# CC, CPPFLAGS, CFLAGS, LDFLAGS and LDLIBS are the user's and come last.  V=1 shows the commands.
# TESTS="test_swap test_plan" runs only these, ARGS="NAME --seed N" is given to each test program.
# scripts/setup.sh looks for optional libraries once, and writes build/config.mk.

.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := all

PREFIX       ?= /usr/local
RUN_FLAGS    ?= --demo

ifeq ($(origin CC),default)
CC := $(shell for c in cc gcc clang; do command -v $$c >/dev/null 2>&1 && echo $$c && exit; done; echo cc)
endif
export CC CPPFLAGS CFLAGS

# A variant builds the test programs in its own folder, with its own flags.
#   asan-ubsan | tsan | faults (tests/faults.sh); valgrind | coverage | strict (.ci/checks.mk)
VARIANT :=
BUILD   := build$(if $(VARIANT),/$(VARIANT))

HEADERS  := memo.h memo_plan.h memo_cuda.cuh memo_sp.h
SOURCES  := $(wildcard src/memo*.* src/*/*.h src/*/*/*.h)
EXTRAS   := $(wildcard extras/*.h extras/*.hpp)
EXAMPLES := $(patsubst %.c,build/examples/%,$(notdir $(wildcard examples/*.c examples/tools/*.c))) build/examples/train_gpt
BENCHES  := $(patsubst bench/%.c,build/bench/%,$(filter-out bench/link_bits.c,$(wildcard bench/*.c)))
# Tests lie in folders, by the header or program that they test; their programs and logs do not.
# Programs over MPI are built by .ci/checks.mk.
TESTS    := $(sort $(filter-out test_%_mpi,$(notdir $(basename $(wildcard tests/*/test_*.c tests/*/test_*.sh)))))
TEST_PROGRAMS := $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(wildcard $(TESTS:%=tests/*/%.c))))
# Test scripts build their own programs, so they run without a variant only.
TEST_SCRIPTS  := $(if $(VARIANT),,$(wildcard $(TESTS:%=tests/*/%.sh)))
vpath test_%.c $(wildcard tests/*)
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

# Tests that compute much are built with -O1, others with -O0 (tests/build.mk); their library, which plans, with -O2.
OPTIMIZE_TESTS = $(or $(OPTIMIZE_$(VARIANT)),-O1)
OPTIMIZE_asan-ubsan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPTIMIZE_faults     := $(OPTIMIZE_asan-ubsan) -DMEMO_TEST_FAULTS -include tests/support/scarce.h
OPTIMIZE_tsan       := -O1 -fsanitize=thread
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
# $(call object,FLAGS): one source file to one object.
define object
@mkdir -p $(@D)
@echo "  CC    $@"
$(Q)$(CC) $(FLAGS) -MMD -MP -MF $@.d -MT $@ $(1) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
endef
# $(call nvcc,FLAGS): one source file of CUDA.
define nvcc
@mkdir -p $(@D)
@echo "  NVCC  $@"
$(Q)nvcc -std=c++17 -I. -Iexamples $(1) $< -o $@
endef

# ---- programs ----

all: examples bench-programs test-programs ## build examples, benchmarks and test programs
examples: $(EXAMPLES) ## build examples/ into build/examples
test-programs: $(TEST_PROGRAMS) ## build tests/ alone
bench-programs: $(BENCHES) build/bench/paper_tables ## build bench/ alone

# -O2 is for programs that plan or compute much, not for the short examples.
# With MEMO_STATIC, functions that a program does not call cost no compile time.
OPTIMIZE_EXAMPLE = $(if $(filter 0% 1% 2% 3% 4% comm_mpi draw_memory,$(@F)),-O1,-O2 $(NATIVE))
vpath %.c examples examples/tools bench bench/papers
build/examples/%: %.c build/config.mk Makefile
	$(call build,$(OPTIMIZE_EXAMPLE) -DMEMO_STATIC $(LP_SOLVE_CFLAGS),$(LP_SOLVE_LIBS))
# memo's implementation is compiled separately.  -O2 makes attention over ranks three times as fast as -O1 (--ring 2), -O3 no faster.
build/examples/memo.o: examples/gpt/memo.c build/config.mk Makefile
	$(call object,-O2 $(NATIVE) $(LP_SOLVE_CFLAGS))
TRAINER       := $(patsubst examples/gpt/%.c,%.o,$(wildcard examples/gpt/*/*.c))
TRAINER_FLAGS := -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE $(JSON_CFLAGS)
# $(call link,LIBRARIES): all objects to the program.
define link
@echo "  LD    $@"
$(Q)$(CC) -pthread $(CFLAGS) $(filter %.o %.a,$^) -o $@ $(LDFLAGS) $(1) $(JSON_LIBS) $(LDLIBS) -lm || { rm -f $@; exit 1; }
endef
build/examples/gpt/%.o: examples/gpt/%.c build/config.mk Makefile
	$(call object,$(TRAINER_FLAGS) -O3 $(NATIVE) $(BLAS_CFLAGS))
# The trainer loads OpenBLAS itself, so that it can refuse to: see gpt/run/device.h.
BLAS_LOADED = $(filter-out -lopenblas,$(BLAS_LIBS)) $(if $(BLAS_CFLAGS),-ldl)
build/examples/train_gpt build/tests/train_gpt: $(TRAINER:%=build/examples/gpt/%)
build/examples/train_gpt build/examples/train_gpt_mpi: build/examples/memo.o
build/examples/train_gpt build/examples/train_gpt_mpi build/tests/train_gpt:
	$(call link,$(LP_SOLVE_LIBS) $(BLAS_LOADED))
# The same on GPUs, with a process per rank, over NCCL if it is found.
CUDA_HOME ?= /usr/local/cuda
CUDA_ARCH ?= native
NCCL_HOME ?= $(firstword $(foreach home,$(CUDA_HOME) /usr,$(if $(wildcard $(home)/include/nccl.h),$(if \
	$(wildcard $(home)/lib64/libnccl.so $(home)/lib/libnccl.so $(home)/lib/*/libnccl.so),$(home)))))
NCCL_FLAGS = -isystem $(CUDA_HOME)/include $(if $(NCCL_HOME),-DMEMO_CUDA_NCCL -isystem $(NCCL_HOME)/include)
NCCL_LIBS  = $(if $(NCCL_HOME),-L$(NCCL_HOME)/lib64 -L$(NCCL_HOME)/lib -lnccl)
build/examples/gpt_kernels_cuda.o: examples/gpt/kernels/cuda.cu $(wildcard examples/gpt/kernels/*.h) $(HEADERS) Makefile
	$(call nvcc,-arch=$(CUDA_ARCH) -O3 -DMEMO_CUDA_IMPLEMENTATION $(NCCL_FLAGS) -c)
build/examples/memo_cuda.o: examples/gpt/memo.c build/config.mk Makefile
	$(call object,-O1 $(LP_SOLVE_CFLAGS))
# CUDNN=folder of cudnn-frontend: attention is cuDNN's.  Another MPI: MPICC=mpicc.mpich MPIEXEC=mpirun.mpich.
export CUDNN ?=
MPICC ?= mpicc
CUDNN_OBJECTS = $(if $(CUDNN),build/examples/gpt_cudnn.o build/examples/cudnn_graphs.o)
# Programs are built again when these words change.
build/examples/cudnn.folder: WORDS = $(CUDNN)
build/mpi/compiler: WORDS = $(MPICC)
build/examples/cudnn.folder build/mpi/compiler: always
	@mkdir -p $(@D)
	@echo '$(WORDS)' | cmp -s - $@ || echo '$(WORDS)' >$@
always:
# -O1, because most of the frontend is host code that runs once.  It is compiled apart from the programs that use it.
build/examples/cudnn_graphs.o: examples/cudnn_graphs.h examples/cudnn_scratch.h build/examples/cudnn.folder Makefile
	$(call nvcc,-x c++ -O1 -DATTENTION_GRAPHS -I"$(CUDNN)/include" -c)
build/examples/gpt_cudnn.o: examples/gpt/kernels/cudnn.cu $(wildcard examples/cudnn_*.h examples/gpt/kernels/*.h) $(HEADERS) build/examples/cudnn.folder Makefile
	$(call nvcc,-arch=$(CUDA_ARCH) -O1 -DATTENTION_LINKED -c)
build/examples/gpt_cuda/%.o: examples/gpt/%.c build/examples/cudnn.folder build/config.mk Makefile
	$(call object,$(TRAINER_FLAGS) -O3 -DTRAIN_CUDA $(if $(CUDNN),-DTRAIN_CUDNN) $(NCCL_FLAGS))
build/examples/train_gpt_cuda: $(TRAINER:%=build/examples/gpt_cuda/%) build/examples/gpt_kernels_cuda.o $(CUDNN_OBJECTS) build/examples/memo_cuda.o
	$(call link,$(LP_SOLVE_LIBS) -L$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/lib $(if $(CUDNN),-lcudnn -lnvrtc) -lcublasLt -lcudart -lstdc++ $(NCCL_LIBS))
# The same over MPI, with a process per rank.  One source knows MPI; the other objects are those of the host's program.
build/examples/gpt_mpi/run/ranks.o: examples/gpt/run/ranks.c build/mpi/compiler build/config.mk Makefile
	$(call object,$(TRAINER_FLAGS) -O3 -DTRAIN_MPI $(NATIVE) $(BLAS_CFLAGS))
build/examples/train_gpt_mpi: $(patsubst %,build/examples/gpt/%,$(filter-out run/ranks.o,$(TRAINER))) build/examples/gpt_mpi/run/ranks.o
build/examples/gpt_mpi/run/ranks.o build/examples/train_gpt_mpi: private override CC = $(MPICC)
build/bench/%: %.c build/config.mk Makefile
	$(call build,-O3 -DMEMO_STATIC $(NATIVE) $(LP_SOLVE_CFLAGS),$(LP_SOLVE_LIBS))

# A copy for an installation has no tests.
-include tests/build.mk
-include $(wildcard $(BUILD)/tests/*.d build/strict/tests/*.d $(LIB_FOLDER)/*.d build/examples/*.d build/examples/gpt*/*/*.d build/bench/*.d)

# ---- run ----

# On the GPU where there is one, and nvcc.
RUN_CUDA := $(if $(wildcard /dev/nvidia0),$(shell command -v nvcc >/dev/null 2>&1 && echo _cuda))
RUN_GPU := on the GPU of this machine, with $(if $(CUDNN),cuDNN's,the built-in) attention
run: ## train a small GPT under every policy for about a minute, on a GPU if there is one; pictures in build/run
	@$(MAKE) -f $(firstword $(MAKEFILE_LIST)) --no-print-directory $(JOBS) build/examples/train_gpt$(RUN_CUDA)
	@mkdir -p build/run
	@$(if $(RUN_CUDA),echo "$(RUN_GPU)";) build/examples/train_gpt$(RUN_CUDA) $(RUN_FLAGS)
bench: bench-programs ## run the benchmarks
	@failed=; for program in $(BENCHES); do echo; echo "$$program"; $$program || failed="$$failed $$program"; done; \
	[ -z "$$failed" ] || { echo "missed a criterion, or found no data:$$failed"; exit 1; }
papers: build/bench/paper_tables ## compute the tables of the three papers, beside the published figures
	@$<

# ---- tests ----

# A name of TESTS that is no test would pass in silence.
STRAY_TESTS = $(wildcard tests/test_* tests/fuzz_*.c)
UNKNOWN_TESTS = $(strip $(foreach test,$(TESTS),$(if $(wildcard tests/*/$(test).c tests/*/$(test).sh),,$(test))))
# As many compilers at a time as there are processors, unless the user sets -j.
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2))
# Scripts run the trainer, the tools and one example; test_examples.sh builds the short ones by their heads.
SCRIPTED := build/tests/train_gpt $(if $(wildcard $(CUDA_HOME)/include/cuda.h),build/strict/tests/fake_cuda.o) build/examples/14_find_a_race $(filter-out $(addprefix build/examples/,0% 1% 2% 3% 4% comm_mpi train_gpt),$(EXAMPLES))

# A separate make builds the programs, so that a program that does not build counts as a failure and the others run.
test: ## build and run the tests; the last line counts them
	@[ -z "$(UNKNOWN_TESTS)" ] || { echo "make $@: TESTS: no such test ($(UNKNOWN_TESTS)); \`ls tests/*/test_*\` shows all" >&2; exit 1; }
	@[ -z "$(STRAY_TESTS)" ] || { echo "make $@: $(STRAY_TESTS): lies in no folder of tests/, so nothing runs it" >&2; exit 1; }
	-@$(MAKE) -f $(firstword $(MAKEFILE_LIST)) --no-print-directory -k $(JOBS) VARIANT=$(VARIANT) test-programs $(if $(TEST_SCRIPTS),$(SCRIPTED))
	@MEMO_TEST_WRAPPER="$(WRAPPER_$(VARIANT))" MEMO_TEST_ARGS="$(ARGS)" \
	TSAN_OPTIONS="history_size=7 $$TSAN_OPTIONS" \
	sh tests/run.sh $(BUILD)/logs $(TEST_SCRIPTS) $(TEST_PROGRAMS)

test-all: ## the same with every compiler and standard, every CUDA source, the largest models, and all random cases; MEMO_TEST_ALL=1/10: a tenth of these
	@MEMO_TEST_ALL=$${MEMO_TEST_ALL:-1} $(MAKE) --no-print-directory test
# $(call need,TOOL,PACKAGE): TOOL is a command
need = command -v $(1) >/dev/null 2>&1 || { echo "make $@: needs $(1) (apt-get install $(2))" >&2; exit 1; }

asan-ubsan: ## the tests under AddressSanitizer (leaks too) and UndefinedBehaviorSanitizer
tsan: ## the tests under ThreadSanitizer
asan-ubsan tsan:
	@mkdir -p build/$@
	@echo 'int main(void) { return 0; }' >build/$@/probe.c
	@$(CC) $(OPTIMIZE_$@) build/$@/probe.c -o build/$@/probe 2>/dev/null || { echo "make $@: $(CC) lacks the runtime of" \
		"$(filter -fsanitize=%,$(OPTIMIZE_$@)) (with gcc: apt-get install libasan8 libubsan1 libtsan2; with clang: libclang-rt-dev)" >&2; exit 1; }
	+@$(MAKE) --no-print-directory VARIANT=$@ test

# ---- style ----

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
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1 \2/p' Makefile $(CHECKS) | while read -r target text; do \
		printf '  %-14s %s\n' "$$target" "$$text"; done

.PHONY: all examples test-programs bench-programs run bench papers test test-all asan-ubsan tsan \
	format format-check release install uninstall setup clean help always
