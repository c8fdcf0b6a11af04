# How test programs are built: included by Makefile.

# The implementation is compiled once for all tests of a variant, and their trainer.  A test that uses private functions defines
# MEMO_IMPLEMENTATION and MEMO_STATIC itself: it takes memory from scarce.o, and does not wait for memo.o.  Invariants are asserted
# in all.
TEST_LIB   ?= $(BUILD)/tests/lib.a
LIB_FOLDER := $(dir $(TEST_LIB))lib
ASSERTS    := '-DMEMO_ASSERT(condition)=assert(condition)'
TEST_FLAGS = -Itests/support -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE $(ASSERTS) $(TEST_DEFINES)
$(LIB_FOLDER)/%.o: private OPTIMIZE_TESTS = $(or $(OPTIMIZE_$(VARIANT)),-O2)
$(LIB_FOLDER)/%.o: tests/lib/%.c build/config.mk Makefile tests/build.mk
	$(call object,$(OPTIMIZE_TESTS) $(ASSERTS) $(LP_SOLVE_CFLAGS))
# CUDA's stand-in, for test scripts and the variant strict.
build/strict/tests/%.o: tests/cuda/%.cpp Makefile tests/build.mk
	@mkdir -p $(@D)
	@echo "  CXX   $@"
	$(Q)$(CXX) -std=c++17 -g1 -O1 -I. -Itests/support -isystem $(CUDA_HOME)/include $(ASSERTS) -MMD -MP -MF $@.d -MT $@ -c $< -o $@

# Outside of variants the library has the private functions too, and these programs take them from it: to compile them again at -O0
# would take three times as long as all else.  A program that redefines what they use, such as MEMO_MALLOC, does not compile so.
SHARED := $(if $(VARIANT),,arena bilevel caching cursor degrees hooks messages mistakes paper_tables plan plan_file \
	recorder row_kernels segments sharding slowing states_law turns)
SHARED := $(SHARED:%=$(BUILD)/tests/test_%)
$(if $(VARIANT),,$(LIB_FOLDER)/memo.o): private ASSERTS += '-DMEMOI=extern MEMO_UNUSED' -Wno-static-in-inline # clang's
$(SHARED): private ASSERTS += '-DMEMOI=extern inline __attribute__((gnu_inline, unused))' -isystem .
$(TEST_LIB): $(patsubst tests/lib/%.c,$(LIB_FOLDER)/%.o,$(wildcard tests/lib/*.c))
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

# For other programs the optimizer would take longer than it saves, under sanitizers too.
OPTIMIZED := comm_nccl gpt gpt_gradients gpt_ranks gpt_tensor gpt_update lora pack plan_limits plan_streams sequence sp_attention swap \
	swap_plan
# In variants these have their own implementation, and plan.
OPTIMIZED += $(if $(VARIANT),bilevel caching cursor degrees messages paper_tables plan row_kernels segments states_law turns)
$(filter-out $(OPTIMIZED:%=$(BUILD)/tests/test_%),$(TEST_PROGRAMS)): private OPTIMIZE_TESTS = $(or $(OPTIMIZE_$(VARIANT):-O1%=-O0%),-O0)

OWN_MEMO := $(if $(INSTEAD),,$(patsubst %.c,$(BUILD)/tests/%,$(notdir $(shell grep -l '^\#define MEMO_STATIC' $(wildcard tests/*/test_*.c)))))
OWN_MEMO := $(filter-out $(SHARED),$(OWN_MEMO))
$(filter-out $(OWN_MEMO),$(TEST_PROGRAMS)) build/tests/train_gpt: $(TEST_LIB) $(INSTEAD)
$(OWN_MEMO): $(LIB_FOLDER)/scarce.o $(INSTEAD)
$(BUILD)/tests/%: %.c build/config.mk Makefile tests/build.mk
	$(call build,$(OPTIMIZE_TESTS) $(TEST_FLAGS) $(LP_SOLVE_CFLAGS) $(TEST_CFLAGS),$(WRAPS) $(if \
		$(filter $@,$(OWN_MEMO)),$(LIB_FOLDER)/scarce.o,$(TEST_LIB)) $(LP_SOLVE_LIBS) $(TEST_LIBS))
# A race detector cannot see into OpenBLAS, and valgrind is slow in it: variants use the built-in GEMM.
$(BUILD)/tests/test_gpt%: private TEST_CFLAGS = $(if $(VARIANT),,$(BLAS_CFLAGS))
$(BUILD)/tests/test_gpt%: private TEST_LIBS = $(if $(VARIANT),,$(BLAS_LIBS))
$(BUILD)/tests/test_safetensors $(BUILD)/tests/test_models: private TEST_CFLAGS = $(JSON_CFLAGS)
$(BUILD)/tests/test_safetensors $(BUILD)/tests/test_models: private TEST_LIBS = $(JSON_LIBS)
# In double precision, in which the plain model shows every mistake, and without OpenBLAS.
$(BUILD)/tests/test_gpt_gradients: private TEST_CFLAGS = -DGPT_DOUBLE
$(BUILD)/tests/test_gpt_gradients: private TEST_LIBS =
