// One step: the op list on every thread, with barriers where lower.py found that they are needed.
#include <chrono>
#include <cmath>
#include <cstring>

#include "model.h"

namespace li {

// One thread's view of a running step.
class Step {
public:
    Step(Model& model, const BatchView& batch, int thread, int threads)
        : m_(model), batch_(batch), thread_(thread), threads_(threads), single_(batch.tokens == 1),
          state_(model.threads_[size_t(thread)]), vector_(*model.isa_.vector), matmul_(*model.isa_.matmul) {}

    void run() { run_ops(0, m_.ops_.size()); }

    // Up to the hidden op. What lies behind the first op of rows runs again for every max_rows rows, so that no buffer
    // needs to have room for more, and its result is collected.
    void run_hidden() {
        const size_t first = size_t(m_.rows_op_), end = size_t(m_.hidden_op_) + 1;
        const ValueRef& out = m_.ops_[end - 1].out[0];
        const int rows = batch_.rows;
        const int32_t* logit_rows = batch_.logit_rows;
        if (!run_ops(0, first)) return;
        for (int begin = 0; begin < rows; begin += batch_.rows) {
            batch_.rows = std::min(rows - begin, m_.limits_.max_rows);
            batch_.logit_rows = logit_rows + begin;
            if (!meet() || !run_ops(first, end) || !meet()) return;
            for (int r = split_begin(batch_.rows, thread_, threads_); r < split_begin(batch_.rows, thread_ + 1, threads_); r++)
                std::memcpy(m_.hidden_.as<float>() + size_t(begin + r) * size_t(out.width), row(out, r), size_t(out.width) * 4);
        }
    }

private:
    // A barrier; false if the step has been cancelled. Thread 0 decides for all, so that no thread waits at a barrier that
    // another has left behind. Two flags in turn: the next decision may be written before the slowest thread has
    // read this one.
    bool meet() {
        unsigned turn = barriers_++ & 1;
        if (thread_ == 0) m_.stop_[turn].store(m_.cancel.load(std::memory_order_relaxed), std::memory_order_relaxed);
        m_.pool_.barrier(thread_);
        return !m_.stop_[turn].load(std::memory_order_relaxed);
    }

    // Runs the ops [first, stop); false if the step has been cancelled.
    bool run_ops(size_t first, size_t stop) {
        using Clock = std::chrono::steady_clock;
        bool profiling = thread_ == 0 && !m_.profile.empty();
        for (size_t i = first; i < stop;) {
            auto begin = profiling ? Clock::now() : Clock::time_point();
            if (barrier_before(m_.ops_[i]) && !meet()) return false;
            size_t end = i + 1;
            if (row_wise(m_.ops_[i])) {
                // A run of row-wise ops goes row by row, not op by op: what one op wrote is still in the first-level
                // cache when the next reads it.
                if (!profiling)
                    while (end < stop && row_wise(m_.ops_[end]) && !barrier_before(m_.ops_[end]) &&
                           dim(m_.ops_[end]) == dim(m_.ops_[i]))
                        end++;
                each_row(dim(m_.ops_[i]), [&](int r) {
                    for (size_t j = i; j < end; j++) execute_row(m_.ops_[j], r);
                });
            } else {
                execute(m_.ops_[i], i);
            }
            if (profiling) m_.profile[i] += std::chrono::duration<double>(Clock::now() - begin).count();
            i = end;
        }
        return true;
    }

    float* row(const ValueRef& v, int r) const {
        if (single_ && v.is_private) return state_.slot[size_t(v.slot)];
        return m_.slots_[size_t(v.slot)].as<float>() + size_t(r) * size_t(v.width);
    }
    int count(int dim) const { return dim == 0 ? batch_.tokens : batch_.rows; }
    bool barrier_before(const Op& op) const { return single_ ? op.barrier_single : op.barrier_batch; }

    // Whether an op computes each of its rows from the same rows of its inputs.
    static bool row_wise(const Op& op) {
        switch (op.kind) {
        case kLinear:
        case kKvAppend:
        case kAttention:
        case kAttentionMerge:
        case kTextAttention: return false;
        default: return !op.by_columns;
        }
    }
    static int dim(const Op& op) { return op.kind == kQuantize ? op.in[0].dim : op.out[0].dim; }

    // Calls f(row) for this thread's rows: all of them (one) in a single-token step, a contiguous part otherwise.
    template <class Function> void each_row(int dim, Function f) const {
        int n = count(dim), begin = single_ ? 0 : split_begin(n, thread_, threads_);
        int end = single_ ? n : split_begin(n, thread_ + 1, threads_);
        for (int r = begin; r < end; r++) f(r);
    }

    void execute_row(const Op& op, int r) {
        const int width = op.out[0].width;
        switch (op.kind) {
        case kEmbed: {
            float* out = row(op.out[0], r);
            matmul_.unpack_row(m_.matrices_[size_t(op.matrices[0])], table_row(op, r), out);
            if (op.factor != 1.0f) vector_.scale(out, op.factor, width, out);
            break;
        }
        case kRopeTable: rope_table(op, r); break;
        case kRmsNorm:
            vector_.rms_norm(row(op.in[0], r), m_.vectors_[size_t(op.vector)].data(), width, op.group, op.factor,
                             row(op.out[0], r));
            break;
        case kLayerNorm:
            vector_.layer_norm(row(op.in[0], r), m_.vectors_[size_t(op.vector)].data(),
                               op.bias >= 0 ? m_.vectors_[size_t(op.bias)].data() : nullptr, width, op.factor,
                               row(op.out[0], r));
            break;
        case kQuantize: {
            const QuantizedSlot& a = quantized(op.activations);
            size_t n = size_t(single_ ? 0 : r), cols = size_t(a.cols);
            matmul_.quantize_row(row(op.in[0], r), a.cols, a.q.as<int8_t>() + n * a.stride,
                                 a.scale.as<float>() + n * (cols / 16), a.sum16.as<float>() + n * (cols / 16),
                                 a.sum32.as<float>() + n * (cols / 32));
            break;
        }
        case kRope: {
            const RopeTable& rope = m_.ropes_[size_t(op.rope)];
            int pairs = int(rope.inverse_frequencies.size());
            const float* cosine = rope_row(op.rope, r);
            vector_.rope(row(op.in[0], r), cosine, cosine + pairs, op.heads, op.head_dim, pairs, rope.adjacent,
                         row(op.out[0], r));
            break;
        }
        case kSelectRows:
            std::memcpy(row(op.out[0], r), row(op.in[0], batch_.logit_rows[r]), size_t(width) * 4);
            break;
        default: elementwise(op, r, 0, width);
        }
    }

    void elementwise(const Op& op, int r, int column, int n) {
        const float* x = row(op.in[0], r) + column;
        float* out = row(op.out[0], r) + column;
        switch (op.kind) {
        case kActivate: vector_.activate(x, op.activation, n, out); break;
        case kGlu: vector_.glu(x, row(op.in[1], r) + column, op.activation, n, out); break;
        case kAdd: vector_.add(x, row(op.in[1], r) + column, n, out); break;
        case kScale: vector_.scale(x, op.factor, n, out); break;
        case kSoftcap: vector_.softcap(x, op.factor, n, out); break;
        }
    }

    void execute(const Op& op, size_t index) {
        switch (op.kind) {
        case kLinear: linear(op, index); break;
        case kKvAppend: kv_append(op); break;
        case kAttention: attention(op, index); break;
        case kAttentionMerge: attention_merge(op); break;
        case kTextAttention: text_attention(op, index); break;
        default: { // elementwise, on the columns that this thread computed in the Linear before
            int groups = (m_.matrices_[size_t(op.matrices[0])].rows + kGroupRows - 1) / kGroupRows;
            int begin = split_begin(groups, thread_, threads_) * kGroupRows;
            int end = std::min(split_begin(groups, thread_ + 1, threads_) * kGroupRows, op.out[0].width);
            if (begin < end)
                for (int r = 0; r < count(op.out[0].dim); r++) elementwise(op, r, begin, end - begin);
        }
        }
    }

    int table_row(const Op& op, int r) const {
        if (op.index == kByPosition) return batch_.positions[r];
        if (op.index == kByType) return batch_.types ? batch_.types[r] : 0;
        return batch_.token_ids[r];
    }

    const QuantizedSlot& quantized(int slot) const {
        return single_ ? state_.quantized[size_t(slot)] : m_.quantized_[size_t(slot)];
    }

    float* rope_row(int table, int r) const {
        if (single_) return state_.rope[size_t(table)].data();
        size_t pairs = m_.ropes_[size_t(table)].inverse_frequencies.size();
        return m_.rope_buffers_[size_t(table)].as<float>() + size_t(r) * 2 * pairs;
    }

    void rope_table(const Op& op, int r) {
        const RopeTable& rope = m_.ropes_[size_t(op.rope)];
        size_t pairs = rope.inverse_frequencies.size();
        float* out = rope_row(op.rope, r);
        for (size_t i = 0; i < pairs; i++) {
            double angle = double(batch_.positions[r]) * rope.inverse_frequencies[i];
            out[i] = float(std::cos(angle)) * rope.magnitude;
            out[pairs + i] = float(std::sin(angle)) * rope.magnitude;
        }
    }

    void linear(const Op& op, size_t index) {
        int rows = count(op.in[0].dim);
        if (rows == 0) return;
        if (!m_.sums_.empty() && m_.sums_[index].squares)
            vector_.add_statistics(m_.sums_[index], row(op.in[0], 0), rows, thread_, threads_);
        Activations a{};
        a.cols = op.in[0].width;
        a.x = row(op.in[0], 0);
        a.x_stride = size_t(op.in[0].width);
        if (op.activations >= 0) {
            const QuantizedSlot& slot = quantized(op.activations);
            a.q = slot.q.as<int8_t>(), a.q_stride = slot.stride;
            a.scale = slot.scale.as<float>(), a.sum16 = slot.sum16.as<float>(), a.sum32 = slot.sum32.as<float>();
            a.scale_stride = size_t(slot.cols / 16), a.sum32_stride = size_t(slot.cols / 32);
        }
        for (int i = 0; i < op.n_matrices; i++) {
            const PackedMatrix& w = m_.matrices_[size_t(op.matrices[i])];
            int groups = (w.rows + kGroupRows - 1) / kGroupRows;
            int begin = split_begin(groups, thread_, threads_), end = split_begin(groups, thread_ + 1, threads_);
            if (begin == end) continue;
            const float* bias = op.biases[i] >= 0 ? m_.vectors_[size_t(op.biases[i])].data() : nullptr;
            matmul_.multiply(w, a, rows, begin, end, row(op.out[i], 0), size_t(op.out[i].width), bias);
        }
    }

    void kv_append(const Op& op) {
        const KvLayout& kv = m_.kv_[size_t(op.layer)];
        int sequence = 0;
        each_row(op.in[0].dim, [&](int r) {
            while (r >= batch_.starts[sequence + 1]) sequence++;
            int position = batch_.positions[r];
            int block = batch_.block_table[batch_.table_starts[sequence] + position / kv.block_size];
            for (int h = 0; h < kv.n_kv_heads; h++) {
                // In a single-token step every thread comes here with the same row: share the heads out.
                if (single_ && h % threads_ != thread_) continue;
                vector_.kv_store(kv, block, position % kv.block_size, h, row(op.in[0], r) + h * kv.head_dim,
                                 row(op.in[1], r) + h * kv.head_dim);
            }
        });
    }

    int first_visible(const Op& op, int r) const {
        int position = batch_.positions[r];
        return op.window > 0 && position >= op.window ? position - op.window + 1 : 0;
    }

    // A task is one tile of one kv head, or, where there are few, one chunk of it. Whole tiles are taken from a counter by
    // whichever thread is free; chunks are dealt out in runs, so that a thread can fetch the next one ahead. The
    // result does not depend on who takes what.
    void attention(const Op& op, size_t index) {
        const KvLayout& kv = m_.kv_[size_t(op.layer)];
        if (m_.split_chunks_) {
            attention_by_chunks(op, kv.n_kv_heads);
            return;
        }
        auto take = [&] { return m_.next_task_[index].fetch_add(1, std::memory_order_relaxed); };
        int tasks = int(m_.tiles_.size()) * kv.n_kv_heads;
        for (int task = take(); task < tasks; task = take())
            attend(op, m_.tiles_[size_t(task / kv.n_kv_heads)], task % kv.n_kv_heads);
    }

    int first_chunk(const Op& op, const Tile& tile) const { return first_visible(op, tile.row) / kChunk; }
    int last_chunk(const Tile& tile) const { return batch_.positions[tile.row + tile.tokens - 1] / kChunk; }

    void attention_by_chunks(const Op& op, int kv_heads) {
        int tasks = 0;
        for (const Tile& tile : m_.tiles_) tasks += kv_heads * (last_chunk(tile) - first_chunk(op, tile) + 1);
        const int begin = split_begin(tasks, thread_, threads_), end = split_begin(tasks, thread_ + 1, threads_);
        int task = 0;       // the first of the tile
        size_t partial = 0; // rows of m_.partials_ before the tile's
        for (const Tile& tile : m_.tiles_) {
            int first = first_chunk(op, tile), chunks = last_chunk(tile) - first + 1;
            int stop = std::min(end, task + kv_heads * chunks);
            for (int mine = std::max(begin, task); mine < stop; mine++) {
                int head = (mine - task) / chunks, chunk = (mine - task) % chunks;
                bool more = mine + 1 < stop && chunk + 1 < chunks;
                attend_partial(op, tile, head, first, chunk, chunks, partial, more ? first + chunk + 1 : -1);
            }
            task += kv_heads * chunks;
            partial += size_t(op.heads) * size_t(chunks);
        }
    }

    // The rows of a tile for one kv head, token by token, the heads that share it side by side.
    struct Rows {
        const float* q[kMaxTileRows];
        int32_t first[kMaxTileRows], last[kMaxTileRows];
    };

    AttentionTile rows_of(const Op& op, const Tile& tile, int kv_head, int next_chunk, Rows& rows) const {
        const KvLayout& kv = m_.kv_[size_t(op.layer)];
        int group = op.heads / kv.n_kv_heads, n = 0;
        for (int t = 0; t < tile.tokens; t++)
            for (int g = 0; g < group; g++, n++) {
                rows.q[n] = row(op.in[0], tile.row + t) + size_t(kv_head * group + g) * size_t(op.head_dim);
                rows.first[n] = first_visible(op, tile.row + t);
                rows.last[n] = batch_.positions[tile.row + t];
            }
        return {&kv, batch_.block_table + batch_.table_starts[tile.sequence], kv_head, n, rows.q, rows.first, rows.last,
                op.factor, op.softcap, next_chunk};
    }

    float* partial_at(const Op& op, size_t index) const {
        return m_.partials_.as<float>() + index * m_.partial_stride(op);
    }

    // One chunk of one token. Partials of a tile are ordered [query head][chunk]; each is out, maximum, sum.
    void attend_partial(const Op& op, const Tile& tile, int kv_head, int first_chunk, int chunk, int chunks, size_t base,
                        int next_chunk) {
        Rows rows;
        AttentionTile t = rows_of(op, tile, kv_head, next_chunk, rows);
        const int dim = padded_dim(op.head_dim);
        float* scores = state_.scratch.as<float>();
        float* out = scores + size_t(t.rows) * attention_scratch(op.head_dim);
        float maximum[kMaxTileRows], total[kMaxTileRows];
        vector_.attend_chunk(t, first_chunk + chunk, maximum, total, out, scores);
        for (int r = 0; r < t.rows; r++) {
            size_t head = size_t(kv_head) * size_t(t.rows) + size_t(r);
            float* to = partial_at(op, base + head * size_t(chunks) + size_t(chunk));
            std::memcpy(to, out + size_t(r) * size_t(dim), size_t(op.head_dim) * 4);
            to[dim] = maximum[r];
            to[dim + 1] = total[r];
        }
    }

    void attend(const Op& op, const Tile& tile, int kv_head) {
        Rows rows;
        AttentionTile t = rows_of(op, tile, kv_head, -1, rows);
        const int last = last_chunk(tile);
        const size_t dim = size_t(padded_dim(op.head_dim)), n = size_t(t.rows);
        float* scores = state_.scratch.as<float>();
        float* chunk_out = scores + n * attention_scratch(op.head_dim);
        float* running = chunk_out + n * dim;
        float maximum[kMaxTileRows], total[kMaxTileRows], chunk_maximum[kMaxTileRows], chunk_total[kMaxTileRows];
        for (size_t r = 0; r < n; r++) maximum[r] = -INFINITY, total[r] = 0.0f;
        std::memset(running, 0, n * dim * 4);
        for (int chunk = first_chunk(op, tile); chunk <= last; chunk++) {
            t.next_chunk = chunk < last ? chunk + 1 : -1;
            vector_.attend_chunk(t, chunk, chunk_maximum, chunk_total, chunk_out, scores);
            for (size_t r = 0; r < n; r++)
                vector_.merge(chunk_maximum[r], chunk_total[r], chunk_out + r * dim, op.head_dim, &maximum[r],
                              &total[r], running + r * dim);
        }
        int group = op.heads / m_.kv_[size_t(op.layer)].n_kv_heads;
        for (int r = 0; r < t.rows; r++)
            finish(op, running + size_t(r) * dim, total[r],
                   row(op.out[0], tile.row + r / group) + size_t(kv_head * group + r % group) * size_t(op.head_dim));
    }

    void finish(const Op& op, const float* running, float total, float* out) const {
        vector_.scale(running, 1.0f / total, op.head_dim, out);
    }

    void attention_merge(const Op& op) {
        if (!m_.split_chunks_) return;
        const size_t dim = size_t(padded_dim(op.head_dim));
        float* running = state_.scratch.as<float>();
        size_t next = 0; // rows of m_.partials_ before the next tile's
        int begin = single_ ? 0 : split_begin(batch_.tokens, thread_, threads_);
        int end = single_ ? 1 : split_begin(batch_.tokens, thread_ + 1, threads_);
        for (const Tile& tile : m_.tiles_) { // one token each
            int chunks = last_chunk(tile) - first_chunk(op, tile) + 1;
            size_t partial = next;
            next += size_t(op.heads) * size_t(chunks);
            if (tile.row < begin || tile.row >= end) continue;
            for (int h = 0; h < op.heads; h++) {
                float maximum = -INFINITY, total = 0.0f;
                std::memset(running, 0, dim * 4);
                for (int c = 0; c < chunks; c++) {
                    const float* p = partial_at(op, partial + size_t(h) * size_t(chunks) + size_t(c));
                    vector_.merge(p[dim], p[dim + 1], p, op.head_dim, &maximum, &total, running);
                }
                finish(op, running, total, row(op.out[0], tile.row) + size_t(h) * size_t(op.head_dim));
            }
        }
    }

    // A task is a tile of queries of one text for one head; it goes through the text's keys chunk by chunk.
    void text_attention(const Op& op, size_t index) {
        int tiles = 0;
        for (int s = 0; s < batch_.sequences; s++) tiles += text_tiles(s);
        auto take = [&] { return m_.next_task_[index].fetch_add(1, std::memory_order_relaxed); };
        for (int task = take(); task < tiles * op.heads; task = take()) {
            int tile = task / op.heads, sequence = 0;
            for (; tile >= text_tiles(sequence); sequence++) tile -= text_tiles(sequence);
            attend_text(op, sequence, tile, task % op.heads);
        }
    }

    int text_tiles(int sequence) const {
        return (batch_.starts[sequence + 1] - batch_.starts[sequence] + kMaxTileRows - 1) / kMaxTileRows;
    }

    void attend_text(const Op& op, int sequence, int tile, int head) {
        const int begin = batch_.starts[sequence], length = batch_.starts[sequence + 1] - begin;
        const int first = tile * kMaxTileRows, rows = std::min(kMaxTileRows, length - first);
        const size_t dim = size_t(op.head_dim), column = size_t(head) * dim, n = size_t(rows);
        const float* q[kMaxTileRows];
        for (int r = 0; r < rows; r++) q[r] = row(op.in[0], begin + first + r) + column;
        TextTile t{row(op.in[1], begin) + column, row(op.in[2], begin) + column, size_t(op.in[1].width),
                   length, rows, op.head_dim, q, op.factor};
        float* chunk_out = state_.scratch.as<float>();
        float* running = chunk_out + n * dim;
        float* scratch = running + n * dim;
        float maximum[kMaxTileRows], total[kMaxTileRows], chunk_maximum[kMaxTileRows], chunk_total[kMaxTileRows];
        for (size_t r = 0; r < n; r++) maximum[r] = -INFINITY, total[r] = 0.0f;
        std::memset(running, 0, n * dim * 4);
        for (int chunk = 0; chunk * kChunk < length; chunk++) {
            vector_.attend_text(t, chunk, chunk_maximum, chunk_total, chunk_out, scratch);
            for (size_t r = 0; r < n; r++)
                vector_.merge(chunk_maximum[r], chunk_total[r], chunk_out + r * dim, op.head_dim, &maximum[r],
                              &total[r], running + r * dim);
        }
        for (size_t r = 0; r < n; r++)
            finish(op, running + r * dim, total[r], row(op.out[0], begin + first + int(r)) + column);
    }

    Model& m_;
    BatchView batch_; // of a hidden step, the rows that it is about
    const int thread_, threads_;
    const bool single_;
    unsigned barriers_ = 0;
    ThreadState& state_;
    const VectorKernels& vector_;
    const MatmulKernels& matmul_;
};

// Every index that native code will follow is checked here; the engine's mistakes must not become wild reads.
bool Model::check(const BatchView& b, int max_rows) {
    auto fail = [&](const char* what) {
        error = what;
        return false;
    };
    if (b.tokens < 1 || b.tokens > limits_.max_tokens) return fail("the step has no tokens, or more than were planned");
    if (b.sequences < 1 || b.sequences > limits_.max_sequences) return fail("the step has too many sequences");
    if (b.rows < 0 || b.rows > max_rows) return fail("the step wants more rows than were planned");
    if (b.starts[0] != 0 || b.starts[b.sequences] != b.tokens) return fail("sequence starts do not cover the step");
    if (b.table_starts[0] != 0 || b.table_starts[b.sequences] != b.table_size)
        return fail("block table starts do not cover the table");
    int vocabulary = 0;
    for (auto& op : ops_)
        if (op.kind == kEmbed && op.index == kByToken) vocabulary = matrices_[size_t(op.matrices[0])].rows;
    for (int s = 0; s < b.sequences; s++) {
        int begin = b.starts[s], end = b.starts[s + 1];
        if (begin >= end || end > b.tokens) return fail("a sequence has no tokens in the step");
        if (b.table_starts[s] > b.table_starts[s + 1]) return fail("block table starts are not ascending");
        int64_t covered = int64_t(b.table_starts[s + 1] - b.table_starts[s]) * limits_.block_size;
        for (int r = begin; r < end; r++) {
            if (b.token_ids[r] < 0 || b.token_ids[r] >= vocabulary) return fail("a token id is outside the vocabulary");
            if (b.positions[r] < 0 || b.positions[r] >= limits_.context) return fail("a position is outside the context");
            if (r > begin && b.positions[r] != b.positions[r - 1] + 1) return fail("positions are not consecutive");
            if (b.positions[r] >= covered) return fail("the block table does not cover a position");
        }
    }
    for (int i = 0; i < b.table_size; i++)
        if (b.block_table[i] < 0 || b.block_table[i] >= limits_.kv_blocks) return fail("a block is outside the pool");
    for (int i = 0; i < b.rows; i++) {
        if (b.logit_rows[i] < 0 || b.logit_rows[i] >= b.tokens) return fail("a logit row is outside the step");
        if (i > 0 && b.logit_rows[i] <= b.logit_rows[i - 1]) return fail("logit rows are not ascending");
    }
    return check_tables(b);
}

// What encoders have beside decoders: tables of positions and types, and texts that must be whole.
bool Model::check_tables(const BatchView& b) {
    for (auto& op : ops_) {
        if (op.kind == kTextAttention) {
            for (int s = 0; s < b.sequences; s++)
                if (b.positions[b.starts[s]] != 0) {
                    error = "the step holds a text without its beginning";
                    return false;
                }
        }
        if (op.kind != kEmbed || op.index == kByToken || (op.index == kByType && !b.types)) continue;
        const int32_t* index = op.index == kByPosition ? b.positions : b.types;
        for (int r = 0; r < b.tokens; r++)
            if (index[r] < 0 || index[r] >= matrices_[size_t(op.matrices[0])].rows) {
                error = op.index == kByPosition ? "a position is outside its table" : "a type is outside its table";
                return false;
            }
    }
    return true;
}

void Model::plan_attention(const BatchView& batch) {
    int group = 1, kv_heads = 1, heads = 1;
    for (auto& op : ops_)
        if (op.kind == kAttention) {
            kv_heads = kv_[size_t(op.layer)].n_kv_heads;
            heads = std::max(heads, op.heads);
            group = std::max(group, op.heads / kv_heads);
        }
    int tokens_per_tile = std::max(1, kTileRows / group);
    tiles_.clear();
    bool all_single = true;
    size_t partials = 0;
    for (int s = 0; s < batch.sequences; s++)
        for (int r = batch.starts[s]; r < batch.starts[s + 1]; r += tokens_per_tile) {
            int n = std::min(tokens_per_tile, batch.starts[s + 1] - r);
            tiles_.push_back({s, r, n});
            all_single = all_single && n == 1;
            partials += size_t(heads) * (size_t(batch.positions[r]) / kChunk + 1);
        }
    bool few = int(tiles_.size()) * kv_heads < 4 * limits_.threads;
    split_chunks_ = batch.tokens == 1 || (all_single && few && partials <= partial_rows_);
    for (auto& counter : next_task_) counter.store(0, std::memory_order_relaxed);
}

Model::Outcome Model::step(const BatchView& batch) {
    return check(batch, limits_.max_rows) ? run(batch, false) : Outcome::refused;
}

Model::Outcome Model::hidden_step(const BatchView& batch) {
    if (hidden_op_ < 0) {
        error = "the model has no hidden states";
        return Outcome::refused;
    }
    return check(batch, limits_.max_tokens) ? run(batch, true) : Outcome::refused;
}

Model::Outcome Model::run(const BatchView& batch, bool hidden) {
    plan_attention(batch);
    last_step_single_ = batch.tokens == 1;
    struct Job {
        Model* model;
        const BatchView* batch;
        bool hidden;
    } job{this, &batch, hidden};
    const bool ran = pool_.run(limits_.threads, [](void* context, int thread, int threads) {
        Job& work = *static_cast<Job*>(context);
        Step step(*work.model, *work.batch, thread, threads);
        if (work.hidden)
            step.run_hidden();
        else
            step.run();
    }, &job, cancel);
    return cancel.exchange(false) || !ran ? Outcome::cancelled : Outcome::done;
}

} // namespace li
