// A loaded model: packed weights, the lowered op list, the KV pools and every buffer that a step needs.
// Built by kernels/cpu/native.py through api.cpp; kernels/cpu/lower.py decides the op list, the slots and the barriers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "isa.h"
#include "pool.h"

namespace li {

constexpr int kMaxMatrices = 4;
// Query rows (tokens times the heads that share a kv head) that attention handles together.
constexpr int kTileRows = 24;

// Where a value lies: slot `slot`, `width` floats per row. `dim` 0: one row per token, 1: per wanted row of logits.
// In a step of a single token, row-wise results are computed by every thread for itself, in its private copy of
// the slot (`is_private`), which costs less than the barrier that sharing would need.
struct ValueRef {
    int32_t slot, width, dim, is_private;
};

enum OpKind : int32_t {
    kEmbed, kRopeTable, kRmsNorm, kQuantize, kLinear, kRope, kKvAppend, kAttention, kAttentionMerge, kGlu, kAdd,
    kScale, kSoftcap, kSelectRows, kLayerNorm, kActivate, kTextAttention, kKinds
};

// What an embedding table is indexed by.
enum Index : int32_t { kByToken, kByPosition, kByType };

// One lowered op. Fields that a kind does not use are 0. The mirror of this struct is in kernels/cpu/native.py.
struct Op {
    int32_t kind;
    int32_t barrier_single, barrier_batch; // a barrier before the op, in steps of one token and of several
    int32_t by_columns;                    // elementwise on the columns that the same thread's Linear computed
    ValueRef in[3];
    ValueRef out[kMaxMatrices];
    int32_t matrices[kMaxMatrices], biases[kMaxMatrices], n_matrices; // biases: vector index or -1
    int32_t activations;                                              // quantized activation slot, -1: none
    int32_t vector, bias, rope, layer;                                // bias: of a norm, -1: none
    int32_t group, heads, head_dim, window, activation, index;
    float factor, softcap;
};

// What memory is reserved for.
enum Purpose : int32_t { kWeights, kKv, kActivations, kPurposes };

struct RopeTable {
    std::vector<double> inverse_frequencies;
    float magnitude;
    bool adjacent;
};

struct KvShape {
    int32_t n_kv_heads, head_dim;
};

struct Limits {
    int32_t max_tokens, max_rows, max_sequences, context, kv_blocks, block_size, kv_type_k, kv_type_v, threads;
};

// A zeroed anonymous mapping, in huge pages where the system gives them.
class Buffer {
public:
    Buffer() = default;
    ~Buffer() { release(); }
    Buffer(Buffer&& other) noexcept : data_(other.data_), bytes_(other.bytes_) { other.data_ = nullptr, other.bytes_ = 0; }
    Buffer& operator=(Buffer&&) = delete;
    // What `reserve` maps for so many bytes.
    static size_t mapped(size_t bytes);
    bool reserve(size_t bytes);
    void release();
    uint8_t* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    template <class T> T* as() const { return reinterpret_cast<T*>(data_); }

private:
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
};

// int8 activations with their scales: see matmul.h.
struct QuantizedSlot {
    explicit QuantizedSlot(int32_t columns)
        : cols(columns), stride(size_t(columns) + (columns % 1024 ? 0 : 64)) {} // see matmul.h
    int32_t cols;
    size_t stride; // from row to row of q
    Buffer q, scale, sum16, sum32;
};

struct MatrixSource {
    int file;
    uint64_t offset;
    size_t row_bytes;
};

struct BatchView {
    int32_t tokens, sequences, rows, table_size;
    const int32_t *token_ids, *positions, *starts, *block_table, *table_starts, *logit_rows;
    const int32_t* types; // of tokens; null: all 0
};

// Consecutive tokens of one sequence that attention handles together.
struct Tile {
    int32_t sequence, row, tokens;
};

// What one thread owns.
struct ThreadState {
    Buffer slots;                          // private copies, one row each
    std::vector<float*> slot;              // [slots]
    std::vector<QuantizedSlot> quantized;  // one row each
    std::vector<std::vector<float>> rope;  // per table: cosine [pairs], sine [pairs]
    Buffer scratch;                        // attention scores, tile results; before that, weights as read
};

class Model {
public:
    Model(Pool& pool, const Isa& isa, const Limits& limits);

    int add_matrix(int32_t type, int32_t rows, int32_t cols, const MatrixSource& source);
    int add_vector(const float* values, int size);
    void add_rope(const double* inverse_frequencies, int pairs, float magnitude, bool adjacent);
    void add_kv_layer(int32_t n_kv_heads, int32_t head_dim) { kv_shapes_.push_back({n_kv_heads, head_dim}); }
    // Reserves all memory, or only adds it up in `reserved`; takes the widths of the value slots and the columns of
    // the quantized slots.
    bool reserve(const Op* ops, int n_ops, const int32_t* slot_widths, int n_slots, const int32_t* quantized_cols,
                 int n_quantized, bool only_plan);
    // Reads and packs every matrix, on all threads. `progress` counts bytes read.
    bool load_weights();
    enum class Outcome { done, refused, cancelled };
    Outcome step(const BatchView& batch);

    // After `cancel` was set: a step that waits for its turn stops waiting.
    void interrupt() { pool_.interrupt(); }
    // Names the op whose result `hidden` steps return, and the first op of rows before it; before `reserve`.
    void set_hidden(int first_op_of_rows, int op) { rows_op_ = first_op_of_rows, hidden_op_ = op; }
    // A step that ends behind that op, for up to max_tokens rows.
    Outcome hidden_step(const BatchView& batch);
    // Copies whole blocks, all layers, keys and values: `pairs` holds (from, to), taken in order. Between steps only.
    bool copy_blocks(const int32_t* pairs, int count);

    // From now on steps add the input of that Linear to the sums, which are the caller's and stay in place; sums without
    // squares end that. False if the op is no Linear of so many columns. Between steps only.
    bool collect(int op, const InputSums& sums);

    // The last op's output in the last step.
    const float* logits() const;
    // What the last hidden step returned, [rows, width].
    const float* hidden() const { return hidden_.as<float>(); }
    std::atomic<bool> cancel{false}; // the load or step that runs, or the next one, stops early and clears it
    std::atomic<uint64_t> progress{0};
    uint64_t reserved[kPurposes] = {};
    std::string error;
    std::vector<double> profile; // seconds per op on thread 0, filled if not empty

private:
    friend class Step;
    bool check(const Op& op, int n_slots, int n_quantized);
    bool check_hidden();
    bool check(const BatchView& batch, int max_rows);
    Outcome run(const BatchView& batch, bool hidden);
    bool check_tables(const BatchView& batch);
    void plan_attention(const BatchView& batch);
    size_t partial_stride(const Op& op) const;
    bool take(Buffer& buffer, size_t bytes, Purpose purpose, bool only_plan);
    bool take(QuantizedSlot& slot, int rows, bool only_plan);

    Pool& pool_;
    const Isa& isa_;
    const Limits limits_;
    std::vector<Op> ops_;
    std::vector<PackedMatrix> matrices_;
    std::vector<MatrixSource> sources_;
    std::vector<std::vector<float>> vectors_;
    std::vector<RopeTable> ropes_;
    std::vector<KvShape> kv_shapes_;
    std::vector<KvLayout> kv_;
    Buffer kv_pool_;
    Buffer weights_;
    std::vector<Buffer> slots_;
    std::vector<QuantizedSlot> quantized_;
    std::vector<Buffer> rope_buffers_; // per table: [max_tokens, 2 * pairs], cosines then sines
    Buffer partials_;                  // attention partials: per query head and chunk, maximum, sum, out
    size_t partial_rows_ = 0;          // (query head, chunk) pairs that fit
    Buffer hidden_;                    // [max_tokens, width of the hidden op's result]
    int rows_op_ = -1, hidden_op_ = -1;
    std::vector<InputSums> sums_; // per op, once anything is collected
    std::vector<ThreadState> threads_;
    std::vector<Tile> tiles_;
    bool last_step_single_ = false;
    bool split_chunks_ = false;        // attention tasks are single chunks, merged by kAttentionMerge
    std::vector<std::atomic<int>> next_task_; // per op
    std::atomic<bool> stop_[2];
};

// The part of [0, count) that belongs to `thread`.
inline int split_begin(int count, int thread, int threads) { return int(int64_t(count) * thread / threads); }

} // namespace li
