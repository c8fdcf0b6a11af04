/* classes.cpp - memo.hpp: a class trains, is verified, and is the `user` of every function; its
 * exceptions come out of each call.  Prints what is wrong. */
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "memo.hpp"

namespace {

int n_wrong;
void check(bool is_right, const char* what) {
    if (!is_right) std::printf("wrong: %s\n", what), n_wrong++;
}
#define CHECK(condition) check(condition, #condition)

enum { LAYERS = 6, ROWS = 256, TILE = 16 };
enum { X, INPUT, TANH };
enum { WEIGHT, GRADIENT };
enum { FORWARD = 1, RECOMPUTE, UPDATE };

/* x = tanh(w x) in each layer, from the sine of the row; the loss is half of the sum of squares. */
class trainer {
  public:
    int throws_in = 0, n_losses = 0;
    bool forgets_input = false;

    void forward(memo_session* s, int32_t layer) {
        maybe_throw(FORWARD);
        auto x = memo::rows<float>(s, layer, X), input = memo::rows<float>(s, layer, INPUT);
        for (int i = 0; i < ROWS && layer == 0; i++) x[i] = std::sin(float(i));
        for (int i = 0; i < ROWS; i++) input[i] = x[i];
        recompute(s, layer, TANH, 0, ROWS);
        auto h = memo::rows<float>(s, layer, TANH);
        for (int i = 0; i < ROWS; i++) x[i] = h[i];
    }
    void between(memo_session*) {}
    void loss(memo_session*) { n_losses++; } /* the gradient of x is x */
    void backward(memo_session* s, int32_t layer) {
        auto d = memo::rows<float>(s, layer, X), input = memo::rows<float>(s, layer, INPUT),
             h = memo::rows<float>(s, layer, TANH);
        float sum = 0;
        for (int i = 0; i < ROWS; i++) {
            const float inner = d[i] * (1 - h[i] * h[i]);
            sum += inner * input[i];
            d[i] = inner * weight(s, layer);
        }
        *state(s, layer, GRADIENT) += sum;
    }
    void recompute(memo_session* s, int32_t layer, int32_t tensor, int64_t begin, int64_t end) {
        maybe_throw(RECOMPUTE);
        auto input = memo::rows<float>(s, layer, INPUT), h = memo::rows<float>(s, layer, tensor);
        for (int64_t i = begin; i < end; i++)
            h[i] = forgets_input && begin ? 0 : std::tanh(weight(s, layer) * input[i]);
    }
    void update(memo_session* s, int32_t layer) {
        maybe_throw(UPDATE);
        if (layer >= 0 && layer < LAYERS)
            *state(s, layer, WEIGHT) -= 0.001f * *state(s, layer, GRADIENT);
    }

  private:
    void maybe_throw(int where) const {
        if (where == throws_in) throw std::out_of_range("the trainer's own");
    }
    static float* state(const memo_session* s, int32_t layer, int32_t index) {
        return static_cast<float*>(memo_session_get_state(s, layer, index));
    }
    static float weight(const memo_session* s, int32_t layer) {
        return 1 + *state(s, layer, WEIGHT);
    }
};

/* `user` of the functions that are no members. */
const void* expected_user;
bool users_are_right = true;
int n_norms, n_verifying, n_planned;
void see(const void* user, int* count) {
    users_are_right &= user == expected_user;
    ++*count;
}
extern "C" {
double norm(void* user) {
    see(user, &n_norms);
    return 1;
}
void verifying(void* user, memo_session*, int32_t) { see(user, &n_verifying); }
void planned(void* user, memo_session*, const memo_step_plan*) { see(user, &n_planned); }
}

const memo_item tensors[] = {MEMO_ITEM("x", 4, MEMO_MOVE, MEMO_EDGE),
                             MEMO_ITEM("input", 4, MEMO_MOVE, MEMO_INPUT),
                             MEMO_ITEM("tanh", 4, MEMO_ROWS)};
const memo_state states[] = {{"weight", 4, MEMO_STATE_WEIGHTS, 0},
                             {"gradient", 4, MEMO_STATE_GRADIENT, 0}};

memo_session_desc make_desc() {
    memo_session_desc desc = {};
    desc.tensors = tensors, desc.n_tensors = 3;
    desc.states = states, desc.n_states = 2;
    desc.n_layers = LAYERS, desc.n_rows = ROWS, desc.tile_rows = TILE;
    desc.loss = memo::member<trainer>::call<decltype(&trainer::loss), &trainer::loss>;
    desc.update = memo::member<trainer>::call<decltype(&trainer::update), &trainer::update>;
    desc.planned = planned;
    return desc;
}

void step(memo::session<trainer>& session) {
    session.run();
    memo::call(memo_session_update, session.get());
}

/* What a call throws; "": nothing. */
template <class F> std::string thrown_by(F function) {
    try {
        function();
    } catch (const memo::error& e) {
        return std::string("memo: ") + e.what();
    } catch (const std::out_of_range& e) {
        return e.what();
    }
    return "";
}
bool has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

void a_class_is_verified_and_trains() {
    trainer mine;
    memo_session_desc desc = make_desc();
    expected_user = &mine;
    memo_verify_desc outside = {};
    outside.norm = norm, outside.verifying = verifying;
    memo::verify(desc, mine, outside);
    CHECK(n_verifying > 0 && n_norms > 0);
    CHECK(has(memo::describe(desc, mine, outside), "MEMO_ITEM("));

    /* In the least budget, and in no less. */
    desc.device_bytes = memo::least(desc, mine);
    const memo_session_desc bound = memo::bind(desc, mine);
    int64_t least = 0;
    memo::call(memo_session_get_least, &bound, &least);
    CHECK(least > 0 && least == desc.device_bytes);
    {
        memo::session<trainer> session(desc, mine);
        const memo::session<trainer>::pointer memory = session.get();
        mine.n_losses = 0;
        for (int i = 0; i < 3; i++) step(session);
        memo::session<trainer> moved(std::move(session));
        for (int i = 0; i < 3; i++) step(moved);
        CHECK(moved.get() == memory && !session.get());
        CHECK(mine.n_losses == 6 && n_planned == 1);
    }
    desc.device_bytes--;
    CHECK(has(thrown_by([&] { memo::session<trainer> session(desc, mine); }), "memo: "));
    CHECK(users_are_right);
}

void a_mistake_is_named() {
    trainer mine;
    mine.forgets_input = true;
    expected_user = &mine;
    const std::string text = thrown_by([&] { memo::verify(make_desc(), mine); });
    CHECK(has(text, "memo: ") && has(text, "tanh"));
}

/* Out of the call during which it was thrown, and not out of a later one. */
void exceptions_come_out() {
    trainer mine;
    memo_session_desc desc = make_desc();
    memo_error error;
    expected_user = &mine;
    for (int where = FORWARD; where <= RECOMPUTE; where++) {
        mine.throws_in = where;
        CHECK(thrown_by([&] { memo::verify(desc, mine); }) == "the trainer's own");
    }
    const memo_session_desc bound = memo::bind(desc, mine);
    CHECK(memo_session_verify(&bound, NULL, &error) && std::strstr(error.message, "has thrown"));
    mine.throws_in = 0;
    CHECK(thrown_by([&] { memo::verify(desc, mine); }) == "");

    memo::session<trainer> session(desc, mine);
    step(session);
    mine.throws_in = UPDATE;
    CHECK(thrown_by([&] { step(session); }) == "the trainer's own");
}

} // namespace

int main() {
    a_class_is_verified_and_trains();
    a_mistake_is_named();
    exceptions_come_out();
    return n_wrong != 0;
}
