/* 34_classes.cpp - a trainer of C++ with classes: memo.hpp makes errors exceptions and addresses
 * views.
 *
 * The trainer is a stack of layers x += tanh(w x) on the calling thread.  Its rows are verified
 * first.  It then runs with everything kept, and in the least budget.  In the end a run throws an
 * exception of its own.
 *
 * Build:
 *     c++ -std=c++11 -O2 -I. -Iextras examples/34_classes.cpp -o 34_classes -lpthread -lm
 * Expected output:
 *     verified: memo changes no gradient
 *     all memory: 512 KiB on the device, 0 KiB on the host
 *     least memory: ... KiB on the device, ... KiB on the host
 *     gradients are bitwise the same
 *     a budget of 1000 bytes: ... the smallest plan needs ...
 *     all memory: 512 KiB on the device, 0 KiB on the host
 *     the trainer's own exception: layer 5
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_CHECK_IMPLEMENTATION
#include "extras/memo.hpp"
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int n_layers = 8, n_rows = 8192; /* rows of one number */
enum { INPUT, TANH };

class trainer {
  public:
    std::vector<float> x, dx, weights, gradients;
    int fails_in = -1;

    trainer() : x(n_rows), dx(n_rows), weights(n_layers, 0.1f), gradients(n_layers) {}

    void forward(memo_session* s, int layer) {
        if (layer == fails_in) throw std::runtime_error("layer " + std::to_string(layer));
        for (int i = 0; i < n_rows && layer == 0; i++) x[size(i)] = std::sin(float(i));
        auto input = memo::rows<float>(s, layer, INPUT);
        std::copy(x.begin(), x.end(), input.begin());
        recompute(s, layer, TANH, 0, n_rows);
        auto h = memo::rows<float>(s, layer, TANH);
        for (int i = 0; i < n_rows; i++) x[size(i)] += h[i];
    }
    void between(memo_session*) {
        for (int i = 0; i < n_rows; i++) dx[size(i)] = 2 * x[size(i)] / n_rows;
    }
    void backward(memo_session* s, int layer) {
        auto input = memo::rows<float>(s, layer, INPUT), h = memo::rows<float>(s, layer, TANH);
        for (int i = 0; i < n_rows; i++) {
            const float d = dx[size(i)] * (1 - h[i] * h[i]);
            gradients[size(layer)] += d * input[i];
            dx[size(i)] += weights[size(layer)] * d;
        }
    }
    void recompute(memo_session* s, int layer, int tensor, int64_t begin, int64_t end) {
        auto input = memo::rows<float>(s, layer, INPUT), h = memo::rows<float>(s, layer, tensor);
        for (int64_t i = begin; i < end; i++) h[i] = std::tanh(weights[size(layer)] * input[i]);
    }

  private:
    static std::size_t size(int i) { return std::size_t(i); }
};

const memo_item tensors[] = {MEMO_ITEM("input", 4, MEMO_MOVE), MEMO_ITEM("tanh", 4, MEMO_ROWS)};

memo_session_desc make_desc(int64_t device_bytes) {
    memo_session_desc desc = {};
    desc.tensors = tensors, desc.n_tensors = 2;
    desc.n_layers = n_layers, desc.n_rows = n_rows, desc.tile_rows = 64;
    desc.device_bytes = device_bytes;
    return desc;
}

/* Compares the gradients of several plans, bit by bit. */
void verify(trainer& t) {
    const memo_verify_output gradients = {"gradients", t.gradients.data(),
                                          int64_t(n_layers * sizeof(float)), MEMO_TYPE_F32,
                                          n_layers};
    memo_verify_desc check = {};
    check.outputs = &gradients, check.n_outputs = 1;
    memo::verify(make_desc(0), t, check);
    std::printf("verified: memo changes no gradient\n");
}

/* Trains three steps, and returns the gradients of the last. */
std::vector<float> train(trainer& t, const char* name, int64_t device_bytes) {
    memo::session<trainer> session(make_desc(device_bytes), t);
    const memo_session_info info = memo_session_get_info(session.get());
    std::printf("%s: %d KiB on the device, %d KiB on the host\n", name,
                int(info.plan->device_bytes >> 10), int(info.plan->host_bytes >> 10));
    for (int step = 0; step < 3; step++) {
        t.gradients.assign(n_layers, 0);
        session.run();
        for (std::size_t l = 0; l < n_layers; l++) t.weights[l] -= 0.01f * t.gradients[l];
    }
    return t.gradients;
}

} // namespace

int main() {
    try {
        trainer kept, moved;
        verify(kept);
        const auto all = train(kept, "all memory", 0);
        const auto some = train(moved, "least memory", memo::least(make_desc(0), moved));
        std::printf("gradients are bitwise %s\n", all == some ? "the same" : "different");
    } catch (const memo::error& e) {
        std::printf("%s\n", e.what());
        return 1;
    }

    try {
        trainer t;
        train(t, "", 1000);
    } catch (const memo::error& e) {
        std::printf("a budget of 1000 bytes: %s\n", e.what());
    }
    try {
        trainer t;
        t.fails_in = 5;
        train(t, "all memory", 0);
    } catch (const std::runtime_error& e) {
        std::printf("the trainer's own exception: %s\n", e.what());
    }
    return 0;
}
