// The C interface of the CPU backend. No exception crosses it: out of memory becomes an error like any other.
#include "api.h"

#include <cstring>
#include <memory>
#include <new>

#include "model.h"

using namespace li;

namespace {

struct Config {
    Limits limits;
    Pool* pool;
    const char* isa; // null: the best
};

template <class Function> auto guarded(Model* model, Function f, decltype(f()) failed) -> decltype(f()) {
    try {
        return f();
    } catch (const std::bad_alloc&) {
        if (model) model->error = "out of memory";
        return failed;
    } catch (...) {
        if (model) model->error = "internal error";
        return failed;
    }
}

int outcome_of(Model* model, Model::Outcome (Model::*step)(const BatchView&), const BatchView& batch) {
    return guarded(model, [&] {
        Model::Outcome outcome = (model->*step)(batch);
        return outcome == Model::Outcome::done ? 0 : outcome == Model::Outcome::cancelled ? 1 : -1;
    }, -1);
}

} // namespace

LI_API const char* li_cpu_isa_name(int index) {
    const Isa* isa = usable_isa(index);
    return isa ? isa->name : nullptr;
}

LI_API size_t li_cpu_group_bytes(const char* isa_name, int32_t type, int32_t cols) {
    const Isa* isa = find_isa(isa_name);
    return isa ? isa->matmul->group_bytes(type, cols) : 0;
}

LI_API int li_cpu_integer_type(const char* isa_name, int32_t type) {
    const Isa* isa = find_isa(isa_name);
    return isa && isa->matmul->integer_type(type);
}

// What kernels/cpu/native.py must agree with: sizes of the structs, the number of op kinds, and limits.
LI_API void li_cpu_layout(int32_t* out) {
    const int32_t layout[] = {sizeof(Op), sizeof(Config), sizeof(BatchView), kKinds, kMaxTileRows, kChunk};
    std::memcpy(out, layout, sizeof layout);
}

LI_API Pool* li_cpu_pool_create() {
    return guarded(nullptr, [] { return new Pool; }, static_cast<Pool*>(nullptr));
}

// 0: a job can have so many threads; -1: the system refuses, and the pool is as it was.
LI_API int li_cpu_pool_grow(Pool* pool, int threads) {
    return guarded(nullptr, [&] { return pool->grow(threads), 0; }, -1);
}

LI_API Model* li_cpu_create(const Config* config) {
    const Isa* isa = find_isa(config->isa);
    if (!isa || !config->pool) return nullptr;
    return guarded(nullptr, [&] { return new Model(*config->pool, *isa, config->limits); }, static_cast<Model*>(nullptr));
}

LI_API void li_cpu_destroy(Model* model) { delete model; }

LI_API const char* li_cpu_error(Model* model) { return model->error.c_str(); }

LI_API int li_cpu_add_matrix(Model* model, int32_t type, int32_t rows, int32_t cols, int file, uint64_t offset,
                             size_t row_bytes) {
    return guarded(model, [&] { return model->add_matrix(type, rows, cols, {file, offset, row_bytes}); }, -1);
}

LI_API int li_cpu_add_vector(Model* model, const float* values, int size) {
    return guarded(model, [&] { return model->add_vector(values, size); }, -1);
}

LI_API int li_cpu_add_rope(Model* model, const double* inverse_frequencies, int pairs, float magnitude, int adjacent) {
    return guarded(model, [&] { return model->add_rope(inverse_frequencies, pairs, magnitude, adjacent != 0), 0; }, -1);
}

LI_API int li_cpu_add_kv_layer(Model* model, int32_t n_kv_heads, int32_t head_dim) {
    return guarded(model, [&] { return model->add_kv_layer(n_kv_heads, head_dim), 0; }, -1);
}

LI_API int li_cpu_reserve(Model* model, const Op* ops, int n_ops, const int32_t* slot_widths, int n_slots,
                          const int32_t* quantized_cols, int n_quantized, int only_plan) {
    return guarded(model, [&] {
        bool ok = model->reserve(ops, n_ops, slot_widths, n_slots, quantized_cols, n_quantized, only_plan != 0);
        return ok ? 0 : -1;
    }, -1);
}

LI_API int li_cpu_load_weights(Model* model) {
    return guarded(model, [&] { return model->load_weights() ? 0 : -1; }, -1);
}

LI_API uint64_t li_cpu_progress(Model* model) { return model->progress.load(); }

// Bytes reserved (or planned) for weights, KV and activations, in the order of `Purpose`.
LI_API const uint64_t* li_cpu_reserved(Model* model) { return model->reserved; }

// 0: done, 1: cancelled, -1: refused (see li_cpu_error).
LI_API int li_cpu_step(Model* model, const BatchView* batch) {
    return outcome_of(model, &Model::step, *batch);
}

// Before li_cpu_reserve: which op's result li_cpu_hidden_step returns, and the first op of rows before it.
LI_API void li_cpu_set_hidden(Model* model, int first_op_of_rows, int op) { model->set_hidden(first_op_of_rows, op); }

// As li_cpu_step, but ends with the hidden states of up to max_tokens rows.
LI_API int li_cpu_hidden_step(Model* model, const BatchView* batch) {
    return outcome_of(model, &Model::hidden_step, *batch);
}

LI_API const float* li_cpu_hidden(Model* model) { return model->hidden(); }

// `pairs`: (from, to) for each of `count` copies. 0: done, -1: refused (see li_cpu_error).
LI_API int li_cpu_copy_blocks(Model* model, const int32_t* pairs, int count) {
    return guarded(model, [&] { return model->copy_blocks(pairs, count) ? 0 : -1; }, -1);
}

// Whether sums over inputs of `cols` columns have these sizes: `gram_size` is 0 where no products are wanted.
static bool sums_fit(const double* squares, int32_t cols, const float* gram, int64_t gram_size, int32_t block) {
    if (!squares || cols < 1) return false;
    if (!gram) return gram_size == 0;
    if (block < 1 || block > cols) return false;
    const int64_t whole = cols / block, rest = cols % block;
    return gram_size == whole * block * block + rest * rest;
}

// Steps add the input of the op, a Linear, to sums of `cols` columns (see InputSums in vector.h) until they are told to
// stop, by no squares. 0: done, -1: refused (see li_cpu_error).
LI_API int li_cpu_collect(Model* model, int op, double* squares, int32_t cols, float* gram, int64_t gram_size,
                          int32_t block) {
    return guarded(model, [&] {
        if (squares && !sums_fit(squares, cols, gram, gram_size, block)) {
            model->error = "the sums are of another size";
            return -1;
        }
        return model->collect(op, {squares, gram, cols, block}) ? 0 : -1;
    }, -1);
}

// Adds rows that lie one behind the other to such sums. 0: done, -1: an argument makes no sense.
LI_API int li_cpu_add_statistics(const char* isa_name, const float* x, int32_t rows, double* squares, int32_t cols,
                                 float* gram, int64_t gram_size, int32_t block) {
    const Isa* isa = find_isa(isa_name);
    if (!isa || !x || rows < 0 || !sums_fit(squares, cols, gram, gram_size, block)) return -1;
    isa->vector->add_statistics({squares, gram, cols, block}, x, rows, 0, 1);
    return 0;
}

LI_API void li_cpu_cancel(Model* model) {
    model->cancel = true;
    model->interrupt();
}

LI_API const float* li_cpu_logits(Model* model) { return model->logits(); }

// Switches per-op timing on (n_ops > 0: returns the seconds so far in `seconds` and goes on) or off (n_ops = 0).
LI_API void li_cpu_profile(Model* model, double* seconds, int n_ops) {
    guarded(model, [&] {
        if (size_t(n_ops) == model->profile.size() && seconds)
            std::memcpy(seconds, model->profile.data(), size_t(n_ops) * sizeof(double));
        model->profile.assign(size_t(n_ops), 0.0);
        return 0;
    }, -1);
}
