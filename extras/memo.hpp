/* memo.hpp - memo for C++11: objects own themselves, errors are thrown, addresses are views.
 *     auto trace = memo::make<memo::trace>(memo_trace_create);   // memo_x_create(..., &x, &error)
 *     memo::call(memo_arena_begin, arena.get());                 // throws memo::error
 *     memo::verify(desc, my_trainer);                            // the first check of a port
 *     memo::session<trainer> session(desc, my_trainer);          // calls its member functions
 *     for (float& x : memo::rows<float>(session.get(), layer, tensor)) ...      License: MIT. */
#pragma once
#include "memo_check.h"
#include <exception>
#include <memory>
#include <stdexcept>
namespace memo {
struct error : std::runtime_error {
    memo_status status;
    explicit error(const memo_error& e) : std::runtime_error(e.message), status(e.status) {}
};
/* Where a trainer's exception waits until C has returned, of this thread's innermost call. */
inline std::exception_ptr*& thrown() {
    static thread_local std::exception_ptr* kept = nullptr;
    return kept;
}
template <class F, class... A> void call(F function, A... arguments) {
    memo_error e = memo_error();
    std::exception_ptr own, *outer = thrown();
    thrown() = &own;
    const memo_status status = function(arguments..., &e);
    thrown() = outer;
    if (own) std::rethrow_exception(own);
    if (status) throw error(e);
}
template <class T, void (*destroy)(T*)> struct destroyer {
    void operator()(T* object) const { destroy(object); }
};
template <class T, void (*destroy)(T*)> using owned = std::unique_ptr<T, destroyer<T, destroy>>;
using trace = owned<memo_trace, memo_trace_destroy>;
using plan = owned<memo_plan, memo_plan_destroy>;
using arena = owned<memo_arena, memo_arena_destroy>;
template <class Owned, class F, class... A> Owned make(F create, A... arguments) {
    typename Owned::pointer object = nullptr;
    call(create, arguments..., &object);
    return Owned(object);
}
template <class T> struct view {
    T *first, *last;
    T* begin() const { return first; }
    T* end() const { return last; }
    T& operator[](std::int64_t i) const { return first[i]; }
};
/* The numbers of a tensor in a layer, or in its open slice. */
template <class T> view<T> rows(const memo_session* s, int32_t layer, int32_t tensor) {
    const memo_slice slice = memo_session_get_slice(s);
    T* at = static_cast<T*>(memo_session_get_address(s, layer, tensor));
    const memo_session_info info = memo_session_get_info(s);
    const int64_t n_bytes = (slice.end - slice.begin) * info.plan->swap.tensors[tensor].row_bytes;
    return {at, at ? at + n_bytes / int64_t(sizeof(T)) : at};
}
/* A function of a desc that calls a member of the trainer.  Its exception ends the micro-batch:
 *     desc.update = memo::member<trainer>::call<decltype(&trainer::update), &trainer::update>; */
template <class T> struct member {
    template <class F, F function, class... A>
    static void call(void* user, memo_session* s, A... a) {
        try {
            (static_cast<T*>(user)->*function)(s, a...);
        } catch (...) {
            if (thrown() && !*thrown()) *thrown() = std::current_exception();
            memo_session_fail(s, MEMO_STATUS_INVALID_STATE, "the trainer has thrown");
        }
    }
};
/* The desc with members of a trainer: forward(memo_session*, layer), backward, between and
 * recompute(memo_session*, layer, tensor, begin, end).  `user` of every function is the trainer. */
template <class T> memo_session_desc bind(memo_session_desc desc, T& trainer) {
    desc.user = &trainer;
    desc.forward = member<T>::template call<decltype(&T::forward), &T::forward>;
    desc.backward = member<T>::template call<decltype(&T::backward), &T::backward>;
    desc.between = member<T>::template call<decltype(&T::between), &T::between>;
    desc.recompute = member<T>::template call<decltype(&T::recompute), &T::recompute>;
    return desc;
}
/* memo_session_verify; the implementation is that of memo_check.h */
template <class T>
void verify(const memo_session_desc& desc, T& trainer,
            const memo_verify_desc& check = memo_verify_desc()) {
    const memo_session_desc bound = memo::bind(desc, trainer);
    call(memo_session_verify, &bound, &check);
}
/* memo_session_describe: the table of tensors as seen */
template <class T>
std::string describe(const memo_session_desc& desc, T& trainer,
                     const memo_verify_desc& check = memo_verify_desc()) {
    const memo_session_desc bound = memo::bind(desc, trainer);
    memo_text text = memo_text();
    const owned<memo_text, memo_text_free> at_end(&text);
    call(memo_session_describe, &bound, &check, &text);
    return text.data ? text.data : "";
}
/* memo_session_get_least: bytes of the device */
template <class T> int64_t least(const memo_session_desc& desc, T& trainer) {
    const memo_session_desc bound = memo::bind(desc, trainer);
    int64_t device_bytes = 0;
    call(memo_session_get_least, &bound, &device_bytes);
    return device_bytes;
}
/* The trainer outlives it. */
template <class T> struct session : owned<memo_session, memo_session_destroy> {
    session(const memo_session_desc& desc, T& trainer) {
        const memo_session_desc bound = memo::bind(desc, trainer);
        memo_session* made = nullptr;
        call(memo_session_create, &bound, &made);
        this->reset(made);
    }
    void run(const memo_batch& batch = memo_batch()) {
        call(memo_session_run, this->get(), &batch);
    }
};
} // namespace memo
