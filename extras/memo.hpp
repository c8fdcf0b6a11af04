/* memo.hpp - memo for C++11: objects own themselves, errors are thrown, addresses are views.
 *     auto trace = memo::make<memo::trace>(memo_trace_create);   // memo_x_create(..., &x, &error)
 *     memo::call(memo_arena_begin, arena.get());                 // throws memo::error
 *     memo::session<trainer> session(desc, my_trainer);          // calls its member functions
 *     for (float& x : memo::rows<float>(session.get(), layer, tensor)) ...      License: MIT. */
#pragma once
#include "memo_plan.h"
#include <memory>
#include <stdexcept>
namespace memo {
struct error : std::runtime_error {
    memo_status status;
    explicit error(const memo_error& e) : std::runtime_error(e.message), status(e.status) {}
};
template <class F, class... A> void call(F function, A... arguments) {
    memo_error e = memo_error();
    if (function(arguments..., &e)) throw error(e);
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
/* Calls members of a trainer, which outlives it: forward(memo_session*, layer), backward, between,
 * recompute(memo_session*, layer, tensor, begin, end).  Their exceptions end the micro-batch. */
template <class T> struct session : owned<memo_session, memo_session_destroy> {
    T& trainer;
    std::exception_ptr thrown;
    template <class F, F member, class... A> static void run(void* u, memo_session* s, A... a) {
        try {
            (static_cast<session*>(u)->trainer.*member)(s, a...);
        } catch (...) {
            static_cast<session*>(u)->thrown = std::current_exception();
            memo_session_fail(s, MEMO_STATUS_INVALID_STATE, "the trainer has thrown");
        }
    }
    template <class F, class... A> void check(F function, A... arguments) {
        memo_error e = memo_error();
        const memo_status status = function(arguments..., &e);
        if (std::exception_ptr t = thrown) thrown = nullptr, std::rethrow_exception(t);
        if (status) throw error(e);
    }
    session(memo_session_desc d, T& t) : trainer(t) {
        memo_session* made = nullptr;
        d.user = this;
        d.forward = run<decltype(&T::forward), &T::forward>;
        d.backward = run<decltype(&T::backward), &T::backward>;
        d.between = run<decltype(&T::between), &T::between>;
        d.recompute = run<decltype(&T::recompute), &T::recompute>;
        check(memo_session_create, &d, &made);
        this->reset(made);
    }
    session(session&&) = delete; /* memo has its address */
    void run(const memo_batch& batch = memo_batch()) {
        check(memo_session_run, this->get(), &batch);
    }
};
} // namespace memo
