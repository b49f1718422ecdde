// Drawing the next token from one row of logits. `SamplingParams` (localinfer/engine/sampling.py) states the meaning of
// every parameter; tests/test_sampler.py compares this file with the same definition in numpy.
//
// Tokens are ranked by (logit descending, id ascending). Nothing here sorts a vocabulary: top-k bounds its threshold by
// the maxima of blocks of 64 tokens, and every cut is found by narrowing a histogram to the one bucket that holds it.
// Candidates stay in ascending id throughout. Sums are taken in a fixed order, so a result is a function of the row and
// of what `Draw` names alone, on every machine.
#include "api.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

namespace {

constexpr int kBlock = 64;     // tokens whose maximum (and sum of weights) is kept
constexpr int kBuckets = 1024; // of a histogram
constexpr int kSortable = 256; // candidates that are simply sorted
constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum Error : int32_t { kNan = -1, kNothing = -2, kArgument = -3, kTooLarge = -4 };

uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// e^x for x <= 0 within 2 ulp, 0 below -87 (such a token, 1e-38 times as likely as the likeliest, is never drawn).
// Without branches, so that the compiler vectorizes it, and with written arithmetic only: the same bits everywhere.
float exp_negative(float x) {
    const uint32_t magnitude = bits_of(x) & 0x7FFFFFFF;
    const uint32_t in_range = 0u - uint32_t(int32_t(magnitude) <= 0x42AE0000); // all ones if |x| <= 87
    const float z = float_of((magnitude & in_range) | 0x80000000);
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    const float shifted = z * 1.44269504f + magic;
    const float n = shifted - magic;
    const float r = (z - n * 0.693359375f) + n * 2.12194440e-4f; // ln 2 in two parts
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    // Times 2^n: the low bits of `shifted` are n.
    return float_of((bits_of(p) + (bits_of(shifted) << 23)) & in_range);
}

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3").
void philox(uint32_t counter[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * counter[0];
        const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
        const uint32_t next0 = uint32_t(b >> 32) ^ counter[1] ^ key0;
        const uint32_t next2 = uint32_t(a >> 32) ^ counter[3] ^ key1;
        counter[1] = uint32_t(b);
        counter[3] = uint32_t(a);
        counter[0] = next0;
        counter[2] = next2;
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
}

// The draw at a position of one of several answers: uniform in [0, 1), 53 bits, a function of these numbers alone.
double uniform(uint64_t seed, uint64_t position, uint32_t choice) {
    uint32_t counter[4] = {uint32_t(position), uint32_t(position >> 32), choice, 0};
    philox(counter, uint32_t(seed), uint32_t(seed >> 32));
    return double((uint64_t{counter[0]} << 21) ^ (counter[1] >> 11)) * 0x1p-53;
}

struct Tokens {
    const int32_t* ids;
    int32_t count;
};

// Everything that a draw depends on beside the logits. Mirrored by `Draw` in ../sampler.py.
struct Draw {
    float temperature;
    int32_t top_k;
    double top_p, min_p, typical_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t choice;
    uint64_t seed, position;
    Tokens seen;         // what the penalties look at
    int32_t from_prompt; // the first of them stand in the prompt, the others in the answer
    Tokens banned;       // cannot be drawn
    Tokens biased;       // ids, ...
    const float* bias;   // ... and what is added to the logit of each
    const uint32_t* allowed; // a bit per token of the vocabulary, the lowest first: what may be drawn; null: all
};

bool well_formed(const Tokens& t) { return t.count >= 0 && (t.count == 0 || t.ids != nullptr); }

struct Candidate {
    float key; // what a cut ranks by
    float weight;
    int32_t id;
};

bool ranks_before(const Candidate& a, const Candidate& b) { return a.key > b.key || (a.key == b.key && a.id < b.id); }

struct Free {
    void operator()(void* p) const { std::free(p); }
};
template <class T> using Array = std::unique_ptr<T[], Free>;

// From calloc: pages that a request never touches (greedy touches next to none) take no memory.
template <class T> Array<T> zeroed(int32_t count) {
    void* p = std::calloc(size_t(count), sizeof(T));
    if (!p) throw std::bad_alloc();
    return Array<T>(static_cast<T*>(p));
}

class Sampler {
public:
    explicit Sampler(int32_t vocab)
        : vocab_(vocab), blocks_((vocab + kBlock - 1) / kBlock), row_(zeroed<float>(vocab)), x_(zeroed<float>(vocab)),
          weight_(zeroed<float>(vocab)), id_(zeroed<int32_t>(vocab)), cut_(zeroed<Candidate>(vocab)),
          occurrences_(zeroed<int32_t>(vocab)), answered_(zeroed<int32_t>(vocab)), block_max_(zeroed<float>(2 * blocks_)),
          block_sum_(zeroed<double>(blocks_)) {}

    int32_t vocab() const { return vocab_; }

    static int64_t bytes(int32_t vocab) {
        const int64_t blocks = (int64_t{vocab} + kBlock - 1) / kBlock;
        return int64_t{vocab} * (6 * 4 + int64_t{sizeof(Candidate)}) + blocks * (2 * 4 + 8) + int64_t{sizeof(Sampler)};
    }

    int32_t sample(const float* logits, const Draw& p) {
        kept_ = 0;
        const float* row = adjusted(logits, p);
        if (row == nullptr) return kArgument;
        float max;
        if (const int32_t error = scan(row, &max)) return error;
        if (p.temperature == 0) return argmax(row, max);
        if (p.top_k > 0 && p.top_k < vocab_) {
            gather_top(row, p.top_k);
        } else {
            for (int32_t i = 0; i < vocab_; ++i) id_[i] = i;
            std::copy_n(row, vocab_, x_.get());
            kept_ = vocab_;
        }
        // exp((logit - max) / temperature): the difference first, so that no temperature overflows.
        for (int32_t i = 0; i < kept_; ++i) x_[i] = (x_[i] - max) / p.temperature;
        for (int32_t i = 0; i < kept_; ++i) weight_[i] = exp_negative(x_[i]);
        if (p.typical_p < 1) keep_typical(p.typical_p);
        if (p.top_p < 1) keep_top_p(p.top_p);
        if (p.min_p > 0) keep_min_p(p.min_p);
        return draw(uniform(p.seed, p.position, p.choice));
    }

    // log softmax of the row as it came: of `token`, and of the `count` tokens that rank first.
    int32_t log_probabilities(const float* row, int32_t token, double* of_token, int32_t count, int32_t* ids,
                              double* of_ids) {
        float max;
        if (const int32_t error = scan(row, &max)) return error;
        const double log_total = max + log_sum(row, max);
        *of_token = row[token] - log_total;
        return rank(row, log_total, count, ids, of_ids);
    }

    // The `count` tokens that rank first after bias, penalties and bans, and their log softmax.
    int32_t candidates(const float* logits, const Draw& p, int32_t count, int32_t* ids, double* logprobs) {
        const float* row = adjusted(logits, p);
        if (row == nullptr) return kArgument;
        float max;
        if (const int32_t error = scan(row, &max)) return error;
        return rank(row, max + log_sum(row, max), count, ids, logprobs);
    }

    // The candidates of the last draw, ascending, with their probabilities.
    int32_t kept(int32_t* ids, float* probabilities, int32_t capacity) {
        const double total = sum(weight_.get(), kept_);
        int32_t n = 0;
        for (int32_t i = 0; i < kept_; ++i) {
            if (weight_[i] == 0) continue;
            if (n < capacity) {
                ids[n] = id_[i];
                probabilities[n] = float(weight_[i] / total);
            }
            ++n;
        }
        return n;
    }

private:
    bool inside(const Tokens& t) const {
        return std::all_of(t.ids, t.ids + t.count, [&](int32_t id) { return id >= 0 && id < vocab_; });
    }

    // The row with bias, penalties, bans and what a grammar allows; null if a token id is out of range.
    const float* adjusted(const float* logits, const Draw& p) {
        if (!inside(p.seen) || !inside(p.banned) || !inside(p.biased)) return nullptr;
        if (p.seen.count == 0 && p.banned.count == 0 && p.biased.count == 0 && p.allowed == nullptr) return logits;
        std::copy_n(logits, vocab_, row_.get());
        for (int32_t i = 0; i < p.biased.count; ++i) row_[p.biased.ids[i]] += p.bias[i];
        penalize(p);
        for (int32_t i = 0; i < p.banned.count; ++i) row_[p.banned.ids[i]] = -kInfinity;
        if (p.allowed != nullptr) forbid_others(p.allowed);
        return row_.get();
    }

    // Mostly whole words of tokens are forbidden, or allowed.
    void forbid_others(const uint32_t* allowed) {
        for (int32_t first = 0; first < vocab_; first += 32) {
            const uint32_t word = allowed[first / 32];
            const int32_t count = std::min(32, vocab_ - first);
            if (word == 0) {
                std::fill_n(row_.get() + first, count, -kInfinity);
            } else if (word != 0xFFFFFFFF) {
                for (int32_t i = 0; i < count; ++i) {
                    if (!(word >> i & 1)) row_[first + i] = -kInfinity;
                }
            }
        }
    }

    void penalize(const Draw& p) {
        const Tokens& seen = p.seen;
        for (int32_t i = 0; i < seen.count; ++i) {
            ++occurrences_[seen.ids[i]];
            answered_[seen.ids[i]] += i >= p.from_prompt;
        }
        for (int32_t i = 0; i < seen.count; ++i) {
            const int32_t token = seen.ids[i];
            if (occurrences_[token] == 0) continue; // a repetition: already done
            float& x = row_[token];
            x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
            if (answered_[token] > 0) x -= p.presence_penalty + p.frequency_penalty * float(answered_[token]);
            occurrences_[token] = answered_[token] = 0;
        }
    }

    // Maxima of the blocks and of the row.
    int32_t scan(const float* row, float* max) {
        uint32_t nan = 0;
        for (int32_t b = 0; b < blocks_; ++b) {
            const int32_t begin = b * kBlock, end = std::min(begin + kBlock, vocab_);
            float lane[16];
            std::fill_n(lane, 16, -kInfinity);
            int32_t i = begin;
            for (; i + 16 <= end; i += 16) {
                for (int j = 0; j < 16; ++j) {
                    const float x = row[i + j];
                    lane[j] = x > lane[j] ? x : lane[j];
                    nan |= int32_t(bits_of(x) & 0x7FFFFFFF) > 0x7F800000;
                }
            }
            for (; i < end; ++i) {
                lane[0] = row[i] > lane[0] ? row[i] : lane[0];
                nan |= int32_t(bits_of(row[i]) & 0x7FFFFFFF) > 0x7F800000;
            }
            block_max_[b] = *std::max_element(lane, lane + 16);
        }
        *max = *std::max_element(block_max_.get(), block_max_.get() + blocks_);
        if (nan) return kNan;
        if (*max == kInfinity) return kTooLarge;
        return *max == -kInfinity ? kNothing : 0;
    }

    int32_t argmax(const float* row, float max) {
        const int32_t block = int32_t(std::find(block_max_.get(), block_max_.get() + blocks_, max) - block_max_.get());
        const int32_t token = int32_t(std::find(row + block * kBlock, row + vocab_, max) - row);
        id_[0] = token;
        weight_[0] = 1;
        kept_ = 1;
        return token;
    }

    // What the k tokens that rank first all reach: at least k tokens reach the k-th largest block maximum.
    float bound_of(int32_t k) {
        if (k >= blocks_) return -kInfinity;
        float* maxima = block_max_.get() + blocks_;
        std::copy_n(block_max_.get(), blocks_, maxima);
        std::nth_element(maxima, maxima + k - 1, maxima + blocks_, [](float a, float b) { return a > b; });
        return maxima[k - 1];
    }

    // The k tokens that rank first become the candidates.
    void gather_top(const float* row, int32_t k) {
        const float bound = bound_of(k);
        for (int32_t b = 0; b < blocks_; ++b) {
            if (block_max_[b] < bound) continue;
            for (int32_t i = b * kBlock, end = std::min(i + kBlock, vocab_); i < end; ++i) {
                x_[kept_] = row[i];
                id_[kept_] = i;
                kept_ += row[i] >= bound && row[i] > -kInfinity;
            }
        }
        if (kept_ <= k) return;
        for (int32_t i = 0; i < kept_; ++i) cut_[i] = {x_[i], 1.0f, id_[i]};
        const Candidate last = find_cut(kept_, k);
        compress([&](int32_t i) { return !ranks_before(last, {x_[i], 0, id_[i]}); });
    }

    // The (at most) k tokens above -inf that rank first, in rank order, and their log softmax; how many. The candidates
    // of the last draw stay.
    int32_t rank(const float* row, double log_total, int32_t k, int32_t* ids, double* logprobs) {
        if (k == 0) return 0;
        const float bound = bound_of(k);
        int32_t n = 0;
        for (int32_t b = 0; b < blocks_; ++b) {
            if (block_max_[b] < bound) continue;
            for (int32_t i = b * kBlock, end = std::min(i + kBlock, vocab_); i < end; ++i) {
                cut_[n] = {row[i], 0, i};
                n += row[i] >= bound && row[i] > -kInfinity;
            }
        }
        k = std::min(k, n);
        std::partial_sort(cut_.get(), cut_.get() + k, cut_.get() + n, ranks_before);
        for (int32_t i = 0; i < k; ++i) {
            ids[i] = cut_[i].id;
            logprobs[i] = cut_[i].key - log_total;
        }
        return k;
    }

    // log of the sum of e^(x - max)
    double log_sum(const float* row, float max) {
        for (int32_t i = 0; i < vocab_; ++i) x_[i] = exp_negative(row[i] - max);
        return std::log(sum(x_.get(), vocab_));
    }

    // Locally typical sampling (Meister et al. 2023, arXiv:2202.00666): ranked by how far the surprise -log p is from
    // the entropy. With x = log p + const, that is |E[x] - x|.
    void keep_typical(double mass) {
        compress([&](int32_t i) { return weight_[i] > 0; });
        const double total = sum(weight_.get(), kept_);
        double mean = 0;
        for (int32_t i = 0; i < kept_; ++i) mean += double(weight_[i]) * x_[i];
        mean /= total;
        for (int32_t i = 0; i < kept_; ++i) cut_[i] = {-std::fabs(float(mean) - x_[i]), weight_[i], id_[i]};
        const Candidate last = find_cut(kept_, mass * total);
        compress([&](int32_t i) {
            return !ranks_before(last, {-std::fabs(float(mean) - x_[i]), weight_[i], id_[i]});
        });
    }

    // Nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751): the fewest likeliest tokens that reach the mass.
    void keep_top_p(double mass) {
        const double total = sum(weight_.get(), kept_);
        // Tokens below this weight hold less than 1 - mass all together, so none of them is kept.
        const float floor = float((1 - mass) * total / kept_ * 0.999);
        compress([&](int32_t i) { return weight_[i] > floor; });
        for (int32_t i = 0; i < kept_; ++i) cut_[i] = {x_[i], weight_[i], id_[i]};
        const Candidate last = find_cut(kept_, mass * total);
        compress([&](int32_t i) { return !ranks_before(last, {x_[i], 0, id_[i]}); });
    }

    void keep_min_p(double share) {
        const double floor = share * *std::max_element(weight_.get(), weight_.get() + kept_);
        compress([&](int32_t i) { return weight_[i] >= floor; });
    }

    template <class Keep> void compress(Keep keep) {
        int32_t n = 0;
        for (int32_t i = 0; i < kept_; ++i) {
            const bool kept = keep(i);
            x_[n] = x_[i];
            weight_[n] = weight_[i];
            id_[n] = id_[i];
            n += kept;
        }
        kept_ = n;
    }

    // The last of the `count` candidates in cut_ that is needed, in rank order, until their weights reach `target`.
    Candidate find_cut(int32_t count, double target) {
        Candidate* c = cut_.get();
        double above = 0; // weight of what ranks before all that is still in c
        while (count > kSortable) {
            float low = c[0].key, high = c[0].key;
            for (int32_t i = 1; i < count; ++i) {
                low = std::min(low, c[i].key);
                high = std::max(high, c[i].key);
            }
            const float scale = (kBuckets - 1) / (high - low);
            if (!(scale > 0 && scale < kInfinity)) break; // all equal, or too far apart for float
            const auto bucket_of = [&](const Candidate& x) { return int32_t((high - x.key) * scale); };
            double mass[kBuckets] = {};
            for (int32_t i = 0; i < count; ++i) mass[bucket_of(c[i])] += c[i].weight;
            int32_t bucket = 0;
            while (bucket < kBuckets - 1 && above + mass[bucket] < target) above += mass[bucket++];
            int32_t n = 0;
            for (int32_t i = 0; i < count; ++i) {
                const Candidate x = c[i];
                c[n] = x;
                n += bucket_of(x) == bucket;
            }
            if (n == count) break;
            if (n == 0) { // rounding alone says that the mass is not reached: everything is needed
                return {-kInfinity, 0, std::numeric_limits<int32_t>::max()};
            }
            count = n;
        }
        if (!std::is_sorted(c, c + count, ranks_before)) std::sort(c, c + count, ranks_before);
        int32_t i = 0;
        for (; i < count - 1 && above + c[i].weight < target; ++i) above += c[i].weight;
        return c[i];
    }

    // Inverse of the cumulative distribution of the candidates in ascending id.
    int32_t draw(double u) {
        if (kept_ == 0) return kNothing;
        const double target = u * sum(weight_.get(), kept_); // leaves block_sum_ behind
        double before = 0;
        const int32_t blocks = (kept_ + kBlock - 1) / kBlock;
        int32_t b = 0;
        while (b < blocks - 1 && before + block_sum_[b] <= target) before += block_sum_[b++];
        int32_t chosen = -1;
        for (int32_t i = b * kBlock, end = std::min(i + kBlock, kept_); i < end; ++i) {
            if (weight_[i] > 0) chosen = i;
            before += weight_[i];
            if (before > target) break;
        }
        for (int32_t i = b * kBlock; chosen < 0; --i) { // a last block of zeros, reached by rounding
            if (weight_[i] > 0) chosen = i;
        }
        return id_[chosen];
    }

    double sum(const float* values, int32_t count) {
        double total = 0;
        for (int32_t b = 0; b * kBlock < count; ++b) {
            const int32_t begin = b * kBlock, end = std::min(begin + kBlock, count);
            double lane[8] = {};
            int32_t i = begin;
            for (; i + 8 <= end; i += 8) {
                for (int j = 0; j < 8; ++j) lane[j] += values[i + j];
            }
            for (; i < end; ++i) lane[0] += values[i];
            block_sum_[b] = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
            total += block_sum_[b];
        }
        return total;
    }

    int32_t vocab_, blocks_;
    Array<float> row_;    // logits with bias, penalties and bans
    Array<float> x_;      // candidates: (logit - max) / temperature; then exponentials of log_sum
    Array<float> weight_; // candidates: e^x
    Array<int32_t> id_;   // candidates: ascending
    Array<Candidate> cut_;
    Array<int32_t> occurrences_, answered_; // per token; all zero between calls
    Array<float> block_max_;                // and room for a copy
    Array<double> block_sum_;
    int32_t kept_ = 0;
};

} // namespace

// Bytes that a sampler of this vocabulary reserves.
LI_API int64_t li_sampler_bytes(int32_t vocab) { return Sampler::bytes(vocab); }

// Null if the vocabulary is empty or memory is short.
LI_API void* li_sampler_create(int32_t vocab) {
    if (vocab < 1) return nullptr;
    try {
        return new Sampler(vocab);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

LI_API void li_sampler_destroy(void* sampler) { delete static_cast<Sampler*>(sampler); }

namespace {

bool well_formed(const void* sampler, const float* logits, const Draw* draw) {
    return sampler != nullptr && logits != nullptr && draw != nullptr && draw->temperature >= 0 && draw->top_k >= 0 &&
           draw->from_prompt >= 0 && well_formed(draw->seen) && well_formed(draw->banned) &&
           well_formed(draw->biased) && (draw->biased.count == 0 || draw->bias != nullptr);
}

bool has_room(int32_t count, const int32_t* ids, const double* values) {
    return count == 0 || (count > 0 && ids != nullptr && values != nullptr);
}

} // namespace

// The log softmax of `logits` [vocab] at `token`, and the `count` tokens that rank first with theirs. Returns how many
// these are, or an error < 0: a NaN (-1), no logit above -inf (-2), an argument out of range (-3), a logit of +inf (-4).
LI_API int32_t li_log_probabilities(void* sampler, const float* logits, int32_t token, double* of_token, int32_t count,
                                    int32_t* ids, double* of_ids) {
    if (sampler == nullptr || logits == nullptr || of_token == nullptr || !has_room(count, ids, of_ids)) return kArgument;
    Sampler& s = *static_cast<Sampler*>(sampler);
    if (token < 0 || token >= s.vocab()) return kArgument;
    return s.log_probabilities(logits, token, of_token, std::min(count, s.vocab()), ids, of_ids);
}

// The token drawn from `logits` [vocab], or an error as above. If `of_token` is not null, it and the `count` places of
// `ids` and `of_ids` receive what li_log_probabilities gives (of the logits as they came), and `found` how many.
LI_API int32_t li_sample(void* sampler, const float* logits, const Draw* draw, double* of_token, int32_t count,
                         int32_t* ids, double* of_ids, int32_t* found) {
    if (!well_formed(sampler, logits, draw) || (of_token != nullptr && found == nullptr)) return kArgument;
    const int32_t token = static_cast<Sampler*>(sampler)->sample(logits, *draw);
    if (token < 0 || of_token == nullptr) return token;
    *found = li_log_probabilities(sampler, logits, token, of_token, count, ids, of_ids);
    return *found < 0 ? *found : token;
}

// The `count` tokens that rank first after bias, penalties and bans, with the log softmax of these logits. Returns how
// many these are (fewer if not so many are above -inf), or an error as above.
LI_API int32_t li_candidates(void* sampler, const float* logits, const Draw* draw, int32_t count, int32_t* ids,
                             double* logprobs) {
    if (!well_formed(sampler, logits, draw) || !has_room(count, ids, logprobs)) return kArgument;
    Sampler& s = *static_cast<Sampler*>(sampler);
    return s.candidates(logits, *draw, std::min(count, s.vocab()), ids, logprobs);
}

// What the last draw chose from: fills at most `capacity` ids and probabilities, returns how many there are.
LI_API int32_t li_sampler_kept(void* sampler, int32_t* ids, float* probabilities, int32_t capacity) {
    return sampler == nullptr ? 0 : static_cast<Sampler*>(sampler)->kept(ids, probabilities, capacity);
}

// Four words of Philox4x32-10, so that a test can compare them with the published ones.
LI_API void li_philox(uint32_t counter[4], uint32_t key0, uint32_t key1) { philox(counter, key0, key1); }

// The uniform number of a (seed, position, choice).
LI_API double li_uniform(uint64_t seed, uint64_t position, uint32_t choice) { return uniform(seed, position, choice); }
