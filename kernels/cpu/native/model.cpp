#include "model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace li {

namespace {

constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kStagingBytes = size_t(256) << 10; // stays in the second-level cache between read and pack

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

} // namespace

size_t Buffer::mapped(size_t bytes) { return round_up(bytes, bytes >= 2 * kHugePage ? kHugePage : 4096); }

bool Buffer::reserve(size_t bytes) {
    release();
    if (bytes == 0) return true;
    bool huge = bytes >= 2 * kHugePage;
    size_t size = mapped(bytes), slack = huge ? kHugePage : 0;
    void* p = mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return false;
    auto start = reinterpret_cast<uintptr_t>(p);
    if (huge) {
        // Keep an aligned window of the mapping and give the rest back.
        uintptr_t aligned = round_up(start, kHugePage);
        if (aligned > start) munmap(p, aligned - start);
        size_t behind = start + size + slack - (aligned + size);
        if (behind) munmap(reinterpret_cast<void*>(aligned + size), behind);
        start = aligned;
#ifdef MADV_HUGEPAGE
        madvise(reinterpret_cast<void*>(start), size, MADV_HUGEPAGE);
#endif
    }
    data_ = reinterpret_cast<uint8_t*>(start);
    bytes_ = size;
    return true;
}

void Buffer::release() {
    if (data_) munmap(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
}

Model::Model(Pool& pool, const Isa& isa, const Limits& limits) : pool_(pool), isa_(isa), limits_(limits) {}

int Model::add_matrix(int32_t type, int32_t rows, int32_t cols, const MatrixSource& source) {
    size_t group_bytes = isa_.matmul->group_bytes(type, cols);
    if (group_bytes == 0) {
        error = "weights of this type cannot be multiplied on this backend";
        return -1;
    }
    matrices_.push_back({type, rows, cols, nullptr, group_bytes});
    sources_.push_back(source);
    return int(matrices_.size()) - 1;
}

int Model::add_vector(const float* values, int size) {
    vectors_.emplace_back(values, values + size);
    return int(vectors_.size()) - 1;
}

void Model::add_rope(const double* inverse_frequencies, int pairs, float magnitude, bool adjacent) {
    ropes_.push_back({std::vector<double>(inverse_frequencies, inverse_frequencies + pairs), magnitude, adjacent});
}

size_t Model::partial_stride(const Op& op) const { return size_t(padded_dim(op.head_dim)) + 8; }

bool Model::take(Buffer& buffer, size_t bytes, Purpose purpose, bool only_plan) {
    reserved[purpose] += Buffer::mapped(bytes);
    return only_plan || buffer.reserve(bytes);
}

bool Model::take(QuantizedSlot& slot, int rows, bool only_plan) {
    size_t n = size_t(rows), cols = size_t(slot.cols);
    return take(slot.q, n * slot.stride, kActivations, only_plan) && take(slot.scale, n * cols / 16 * 4, kActivations, only_plan) &&
           take(slot.sum16, n * cols / 16 * 4, kActivations, only_plan) &&
           take(slot.sum32, n * cols / 32 * 4, kActivations, only_plan);
}

// Whether every index of an op is inside its table.
bool Model::check(const Op& op, int n_slots, int n_quantized) {
    auto inside = [](int index, size_t count) { return index >= 0 && size_t(index) < count; };
    auto optional = [&](int index, size_t count) { return index == -1 || inside(index, count); };
    bool ok = op.n_matrices >= 0 && op.n_matrices <= kMaxMatrices && optional(op.activations, size_t(n_quantized)) &&
              optional(op.vector, vectors_.size()) && optional(op.bias, vectors_.size()) && optional(op.rope, ropes_.size()) &&
              optional(op.layer, kv_shapes_.size());
    for (int i = 0; ok && i < op.n_matrices; i++)
        ok = inside(op.matrices[i], matrices_.size()) && optional(op.biases[i], vectors_.size());
    for (auto& v : op.in) ok = ok && inside(v.slot, size_t(n_slots)) && v.width >= 0;
    for (auto& v : op.out) ok = ok && inside(v.slot, size_t(n_slots)) && v.width >= 0;
    if (ok && (op.kind == kAttention || op.kind == kAttentionMerge))
        ok = op.layer >= 0 && op.heads > 0 && op.heads / kv_shapes_[size_t(op.layer)].n_kv_heads <= kMaxTileRows;
    if (ok && op.kind == kTextAttention) {
        ok = op.heads > 0 && op.head_dim > 0 && op.head_dim % 8 == 0;
        for (const ValueRef* v : {&op.in[0], &op.in[1], &op.in[2], &op.out[0]})
            ok = ok && v->dim == 0 && int64_t(v->width) == int64_t(op.heads) * op.head_dim;
    }
    if (ok && op.kind == kLayerNorm) {
        auto fits = [&](int vector) { return vectors_[size_t(vector)].size() >= size_t(op.out[0].width); };
        ok = op.vector >= 0 && fits(op.vector) && (op.bias < 0 || fits(op.bias)) && op.in[0].width == op.out[0].width;
    }
    return ok && (op.kind != kKvAppend || op.layer >= 0) && (op.kind != kRmsNorm || op.vector >= 0);
}

// Whether hidden steps can run the ops from rows_op_ to hidden_op_ again and again, for some rows at a time.
bool Model::check_hidden() {
    if (hidden_op_ < 0) return true;
    bool ok = rows_op_ >= 0 && rows_op_ <= hidden_op_ && size_t(hidden_op_) < ops_.size() && limits_.max_rows > 0;
    for (int i = rows_op_; ok && i <= hidden_op_; i++) {
        const Op& op = ops_[size_t(i)];
        bool per_token = op.kind == kEmbed || op.kind == kRopeTable || op.kind == kRope || op.kind == kKvAppend ||
                         op.kind == kAttention || op.kind == kAttentionMerge || op.kind == kTextAttention;
        ok = !per_token && (op.kind == kQuantize ? op.in[0].dim : op.out[0].dim) == 1;
    }
    return ok;
}

bool Model::reserve(const Op* ops, int n_ops, const int32_t* slot_widths, int n_slots, const int32_t* quantized_cols,
                    int n_quantized, bool only_plan) {
    auto want = [&](Buffer& buffer, size_t bytes, Purpose purpose) { return take(buffer, bytes, purpose, only_plan); };
    ops_.assign(ops, ops + n_ops);
    for (auto& op : ops_)
        if (!check(op, n_slots, n_quantized)) {
            error = "an op refers to something that does not exist";
            return false;
        }
    if (!check_hidden()) {
        error = "the ops that lead to the hidden states cannot run by themselves";
        return false;
    }
    for (int32_t type : {limits_.kv_type_k, limits_.kv_type_v})
        if (type < kKvF16 || type > kKvInt8) {
            error = "keys or values are of an unknown type";
            return false;
        }
    next_task_ = std::vector<std::atomic<int>>(size_t(n_ops));
    bool ok = true;

    size_t weight_bytes = 0;
    std::vector<size_t> offsets;
    for (auto& m : matrices_) {
        offsets.push_back(weight_bytes);
        weight_bytes += round_up(size_t(m.rows + kGroupRows - 1) / kGroupRows * m.group_bytes, 64);
    }
    ok = ok && want(weights_, weight_bytes, kWeights);
    for (size_t i = 0; ok && i < matrices_.size(); i++) matrices_[i].data = weights_.data() + offsets[i];

    int32_t rows_of_slot = std::max(limits_.max_tokens, limits_.max_rows);
    std::vector<int32_t> slot_rows(size_t(n_slots), 0);
    auto note_rows = [&](const ValueRef& v) {
        int32_t rows = v.dim == 0 ? limits_.max_tokens : limits_.max_rows;
        if (v.width) slot_rows[size_t(v.slot)] = std::max(slot_rows[size_t(v.slot)], rows);
    };
    for (auto& op : ops_) {
        for (auto& v : op.in) note_rows(v);
        for (auto& v : op.out) note_rows(v);
    }
    size_t private_bytes = 0;
    for (int s = 0; s < n_slots; s++) {
        slots_.emplace_back();
        ok = ok && want(slots_.back(), size_t(slot_rows[size_t(s)]) * size_t(slot_widths[s]) * 4, kActivations);
        private_bytes += round_up(size_t(slot_widths[s]) * 4, 64);
    }
    for (int s = 0; s < n_quantized; s++) {
        quantized_.emplace_back(quantized_cols[s]);
        ok = ok && take(quantized_.back(), rows_of_slot, only_plan);
    }
    for (auto& rope : ropes_) {
        rope_buffers_.emplace_back();
        ok = ok && want(rope_buffers_.back(), size_t(limits_.max_tokens) * rope.inverse_frequencies.size() * 2 * 4, kActivations);
    }

    const size_t span_blocks = size_t(kChunk / limits_.block_size);
    size_t span_bytes = 0;
    std::vector<size_t> kv_offsets;
    for (auto& shape : kv_shapes_) {
        kv_.emplace_back(limits_.kv_type_k, limits_.kv_type_v, limits_.block_size, shape.n_kv_heads, shape.head_dim);
        for (size_t bytes : {kv_.back().block_bytes_k, kv_.back().block_bytes_v}) {
            kv_offsets.push_back(span_bytes);
            span_bytes += bytes * span_blocks * size_t(shape.n_kv_heads);
        }
    }
    span_bytes = round_up(span_bytes, 4096);
    ok = ok && want(kv_pool_, (size_t(limits_.kv_blocks) + span_blocks - 1) / span_blocks * span_bytes, kKv);
    for (size_t i = 0; i < kv_.size(); i++) {
        kv_[i].span_bytes = span_bytes;
        kv_[i].k = kv_pool_.data() + kv_offsets[2 * i];
        kv_[i].v = kv_pool_.data() + kv_offsets[2 * i + 1];
    }

    // Attention: partials for one token of every head at the full context; a step of a few tokens shares them.
    size_t heads = 0, stride = 0, scratch = kStagingBytes;
    for (auto& source : sources_) scratch = std::max(scratch, source.row_bytes * kGroupRows); // at least one group
    for (auto& op : ops_) {
        if (op.kind != kAttention) continue;
        heads = std::max(heads, size_t(op.heads));
        stride = std::max(stride, partial_stride(op));
        size_t tile_rows = std::max<size_t>(size_t(op.heads / kv_[size_t(op.layer)].n_kv_heads), kTileRows);
        // what attend_chunk needs, chunk result and running result [rows, dim] each, maxima and sums
        size_t row = attention_scratch(op.head_dim) + 2 * partial_stride(op);
        scratch = std::max(scratch, tile_rows * row * 4 + tile_rows * 64);
    }
    for (auto& op : ops_)
        if (op.kind == kTextAttention) {
            // what attend_text needs, chunk result and running result [rows, dim] each
            size_t row = kChunk + 2 * size_t(op.head_dim);
            scratch = std::max(scratch, (kMaxTileRows * row + text_scratch(op.head_dim)) * 4);
        }
    partial_rows_ = heads * (size_t(limits_.context) / kChunk + 1);
    ok = ok && want(partials_, partial_rows_ * stride * 4, kActivations);

    if (hidden_op_ >= 0) {
        size_t width = size_t(ops_[size_t(hidden_op_)].out[0].width);
        ok = ok && want(hidden_, size_t(limits_.max_tokens) * width * 4, kActivations);
    }

    for (int t = 0; t < limits_.threads; t++) {
        threads_.emplace_back();
        ThreadState& state = threads_.back();
        ok = ok && want(state.slots, private_bytes, kActivations) && want(state.scratch, scratch, kActivations);
        size_t offset = 0;
        for (int s = 0; s < n_slots; s++) {
            state.slot.push_back(reinterpret_cast<float*>(state.slots.data() + offset));
            offset += round_up(size_t(slot_widths[s]) * 4, 64);
        }
        for (int s = 0; s < n_quantized; s++) {
            state.quantized.emplace_back(quantized_cols[s]);
            ok = ok && take(state.quantized.back(), 1, only_plan);
        }
        for (auto& rope : ropes_) state.rope.emplace_back(rope.inverse_frequencies.size() * 2);
    }
    tiles_.reserve(size_t(limits_.max_tokens));
    if (!ok) error = "the operating system refused the memory";
    return ok;
}

bool Model::load_weights() {
    struct Unit {
        size_t matrix;
        int group, groups;
    };
    struct Job {
        Model* model;
        std::vector<Unit> units;
        std::atomic<size_t> next{0};
        std::atomic<int> failed{0}; // errno, or -1 for a short file
    } job;
    job.model = this;
    for (size_t i = 0; i < matrices_.size(); i++) {
        int groups = (matrices_[i].rows + kGroupRows - 1) / kGroupRows;
        int at_once = int(std::max<size_t>(1, kStagingBytes / (sources_[i].row_bytes * kGroupRows)));
        for (int g = 0; g < groups; g += at_once) job.units.push_back({i, g, std::min(at_once, groups - g)});
    }
    progress = 0;
    const bool ran = pool_.run(
        limits_.threads,
        [](void* context, int thread, int) {
            Job& work = *static_cast<Job*>(context);
            Model& model = *work.model;
            for (size_t u; (u = work.next.fetch_add(1)) < work.units.size() && !work.failed && !model.cancel;) {
                const Unit& unit = work.units[u];
                const PackedMatrix& m = model.matrices_[unit.matrix];
                const MatrixSource& source = model.sources_[unit.matrix];
                int row = unit.group * kGroupRows, rows = std::min(unit.groups * kGroupRows, m.rows - row);
                size_t bytes = size_t(rows) * source.row_bytes, done = 0;
                uint8_t* staging = model.threads_[size_t(thread)].scratch.data();
                while (done < bytes) {
                    ssize_t n = pread(source.file, staging + done, bytes - done,
                                      off_t(source.offset + size_t(row) * source.row_bytes + done));
                    if (n < 0 && errno == EINTR) continue;
                    if (n <= 0) {
                        work.failed = n < 0 ? errno : -1;
                        return;
                    }
                    done += size_t(n);
                }
                for (int g = 0; g < unit.groups; g++) {
                    int group_rows = std::min(kGroupRows, rows - g * kGroupRows);
                    model.isa_.matmul->pack_group(m.type, staging + size_t(g) * kGroupRows * source.row_bytes,
                                                  source.row_bytes, group_rows, m.cols,
                                                  const_cast<uint8_t*>(m.data) + size_t(unit.group + g) * m.group_bytes);
                }
                model.progress.fetch_add(bytes);
            }
        },
        &job, cancel);
    if (job.failed) {
        error = job.failed < 0 ? "the file ended before the weights did" : std::strerror(job.failed);
        return false;
    }
    if (cancel.exchange(false) || !ran) {
        error = "cancelled";
        return false;
    }
    return true;
}

bool Model::copy_blocks(const int32_t* pairs, int count) {
    for (int i = 0; i < 2 * count; i++)
        if (pairs[i] < 0 || pairs[i] >= limits_.kv_blocks) {
            error = "a block is outside the pool";
            return false;
        }
    for (int i = 0; i < count; i++) {
        int32_t from = pairs[2 * i], to = pairs[2 * i + 1];
        if (from == to) continue;
        for (const KvLayout& kv : kv_)
            for (int32_t h = 0; h < kv.n_kv_heads; h++) { // scales lie inside the blocks
                std::memcpy(kv.k_block(h, to), kv.k_block(h, from), kv.block_bytes_k);
                std::memcpy(kv.v_block(h, to), kv.v_block(h, from), kv.block_bytes_v);
            }
    }
    return true;
}

bool Model::collect(int op, const InputSums& sums) {
    if (op < 0 || size_t(op) >= ops_.size() || ops_[size_t(op)].kind != kLinear || ops_[size_t(op)].in[0].width != sums.cols) {
        error = "there is no matrix product with such an input";
        return false;
    }
    sums_.resize(ops_.size());
    sums_[size_t(op)] = sums;
    return true;
}

const float* Model::logits() const {
    const ValueRef& out = ops_.back().out[0];
    return last_step_single_ && out.is_private ? threads_[0].slot[size_t(out.slot)] : slots_[size_t(out.slot)].as<float>();
}

} // namespace li
