// Drawing the next token from one row of logits. `SamplingParams` (localinfer/engine/sampling.py) states the meaning of
// every parameter; tests/test_sampler.py compares this file with the same definition in numpy.
//
// Tokens are ranked by (logit descending, id ascending). Nothing here sorts a vocabulary: top-k bounds its threshold by
// the maxima of blocks of 64 tokens, and every cut is found by narrowing a histogram to the one bucket that holds it.
// Candidates stay in ascending id throughout. Sums are taken in a fixed order, so a result is a function of the row and
// of what `Draw` names alone, on every machine.
#include "api.h"
#include "sampler_numbers.h"
#include "sampler_repetition.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <numeric>

using namespace li;

namespace {

constexpr int kBlock = 64;     // tokens whose maximum (and sum of weights) is kept
constexpr int kBuckets = 1024; // of a histogram
constexpr int kSortable = 256; // candidates that are simply sorted
constexpr int kZipf = 100;     // tokens from which Mirostat estimates how fast probabilities fall
constexpr double kLeastTemperature = 1e-9;
constexpr double kLargestPenalty = 1e30; // of DRY: no logit comes near it, and float holds it

enum Error : int32_t { kNan = -1, kNothing = -2, kArgument = -3, kTooLarge = -4 };

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
    double top_n_sigma;
    double dynatemp_range, dynatemp_exponent;
    double xtc_probability, xtc_threshold;
    int32_t mirostat; // which of the two; 0: neither
    double mirostat_tau, mirostat_eta;
    double mirostat_mu, mirostat_next_mu; // as it is, and out: as it is once the drawn token is accepted
    double dry_multiplier, dry_base;
    int32_t dry_allowed_length;
    Tokens dry_text; // where DRY looks for repetitions; its end is the end of the text
    Breakers dry_breakers;
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
    // `longest` is how many tokens DRY looks at, at most.
    Sampler(int32_t vocab, int32_t longest)
        : vocab_(vocab), longest_(longest), blocks_((vocab + kBlock - 1) / kBlock), row_(zeroed<float>(vocab)), x_(zeroed<float>(vocab)),
          weight_(zeroed<float>(vocab)), id_(zeroed<int32_t>(vocab)), cut_(zeroed<Candidate>(vocab)),
          occurrences_(zeroed<int32_t>(vocab)), answered_(zeroed<int32_t>(vocab)), block_max_(zeroed<float>(2 * blocks_)),
          block_sum_(zeroed<double>(blocks_)), lengths_(zeroed<int32_t>(longest)) {}

    int32_t vocab() const { return vocab_; }

    static int64_t bytes(int32_t vocab, int32_t longest) {
        const int64_t blocks = (int64_t{vocab} + kBlock - 1) / kBlock;
        return int64_t{vocab} * (6 * 4 + int64_t{sizeof(Candidate)}) + blocks * (2 * 4 + 8) + int64_t{longest} * 4 +
               int64_t{sizeof(Sampler)};
    }

    int32_t sample(const float* logits, Draw& p) {
        kept_ = 0;
        p.mirostat_next_mu = p.mirostat_mu;
        const float* row = adjusted(logits, p);
        if (row == nullptr) return kArgument;
        float max;
        if (const int32_t error = scan(row, &max)) return error;
        if (p.temperature == 0) return argmax(row, max);
        if (p.mirostat != 0) return draw_mirostat(row, max, p);
        gather(row, p.top_k);
        if (p.top_n_sigma > 0) keep_above(max - p.top_n_sigma * deviation_);
        weigh(max, p.dynatemp_range > 0 ? dynamic_temperature(max, p) : p.temperature);
        if (p.typical_p < 1) keep_typical(p.typical_p);
        if (p.top_p < 1) keep_top_p(p.top_p);
        if (p.min_p > 0) keep_min_p(p.min_p);
        if (p.xtc_probability > 0 && uniform(p.seed, p.position, p.choice, kExclusion) < p.xtc_probability) {
            exclude_top(p.xtc_threshold);
        }
        return token(draw(uniform(p.seed, p.position, p.choice, kToken)));
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
        if (!inside(p.seen) || !inside(p.banned) || !inside(p.biased) || !inside(p.dry_text)) return nullptr;
        if (p.seen.count == 0 && p.banned.count == 0 && p.biased.count == 0 && p.allowed == nullptr &&
            p.dry_text.count == 0) {
            if (p.top_n_sigma > 0) deviation_ = deviation(logits);
            return logits;
        }
        std::copy_n(logits, vocab_, row_.get());
        for (int32_t i = 0; i < p.biased.count; ++i) row_[p.biased.ids[i]] += p.bias[i];
        penalize(p);
        if (p.dry_text.count > 0) penalize_repetition(p);
        if (p.top_n_sigma > 0) deviation_ = deviation(row_.get()); // of all logits, also those of what is forbidden here
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

    // DRY (p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/5677): a token with which the text would
    // go on as it went on before, for longer than is allowed, becomes the less likely the longer that is.
    void penalize_repetition(const Draw& p) {
        const FromEnd text{p.dry_text.ids + p.dry_text.count, std::min(p.dry_text.count, longest_)};
        const int32_t most = unbroken(text, p.dry_breakers);
        if (most < p.dry_allowed_length) return;
        repeated(text, lengths_.get());
        const auto found = [&](int32_t k) { return std::min(lengths_[k], most); };
        for (int32_t k = 1; k < text.count; ++k) {
            if (found(k) < p.dry_allowed_length) continue;
            int32_t& longest = occurrences_[text[k - 1]]; // and one more, so that 0 is none
            longest = std::max(longest, found(k) + 1);
        }
        for (int32_t k = 1; k < text.count; ++k) {
            const int32_t token = text[k - 1], longest = occurrences_[token] - 1;
            if (longest < 0) continue;
            occurrences_[token] = 0;
            if (p.dry_breakers.is_one(token)) continue;
            row_[token] -= float(std::min(p.dry_multiplier * power(p.dry_base, longest - p.dry_allowed_length),
                                          kLargestPenalty));
        }
    }

    static double power(double base, int32_t exponent) {
        double result = 1;
        for (; exponent > 0; exponent /= 2, base *= base) {
            if (exponent % 2 == 1) result *= base;
        }
        return result;
    }

    // The standard deviation of the logits that are above -inf.
    double deviation(const float* row) {
        const auto mean_of = [&](auto value) {
            double lane[8] = {}, count[8] = {};
            for (int32_t i = 0; i < vocab_; ++i) {
                const bool real = row[i] > -kInfinity;
                lane[i % 8] += real ? value(row[i]) : 0;
                count[i % 8] += real;
            }
            double total = 0, of = 0;
            for (int j = 0; j < 8; ++j) {
                total += lane[j];
                of += count[j];
            }
            return of > 0 ? total / of : 0;
        };
        const double mean = mean_of([](float x) { return double(x); });
        return std::sqrt(mean_of([&](float x) { return (x - mean) * (x - mean); }));
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

    // The k tokens that rank first (0: all) become the candidates.
    void gather(const float* row, int32_t k) {
        kept_ = 0;
        if (k > 0 && k < vocab_) {
            gather_top(row, k);
        } else {
            std::iota(id_.get(), id_.get() + vocab_, 0);
            std::copy_n(row, vocab_, x_.get());
            kept_ = vocab_;
        }
    }

    // From logits to exp((logit - max) / temperature): the difference first, so that no temperature overflows.
    void weigh(float max, float temperature) {
        const int32_t count = kept_;
        float *x = x_.get(), *weight = weight_.get();
        for (int32_t i = 0; i < count; ++i) x[i] = (x[i] - max) / temperature;
        for (int32_t i = 0; i < count; ++i) weight[i] = exp_negative(x[i]);
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

    // Top-n-sigma (Tang et al. 2024, arXiv:2411.07641), of candidates that are logits still.
    void keep_above(double floor) {
        compress([&](int32_t i) { return !(x_[i] < floor); });
    }

    // The temperature between two, by how undecided the candidates (logits still) are: their entropy, against that of
    // as many equally likely ones.
    float dynamic_temperature(float max, const Draw& p) {
        int32_t count = 0;
        double total = 0, product = 0;
        for (int32_t i = 0; i < kept_; ++i) {
            const double weight = exp_negative(x_[i] - max);
            count += x_[i] > -kInfinity;
            total += weight;
            product += weight > 0 ? weight * (x_[i] - max) : 0;
        }
        const double entropy = log_of(total) - product / total;
        const double share = count > 1 ? std::min(1.0, std::max(0.0, entropy / log_of(count))) : 0;
        const double least = std::max(0.0, p.temperature - p.dynatemp_range), most = p.temperature + p.dynatemp_range;
        return float(std::max(kLeastTemperature,
                              least + (most - least) * power_of_share(share, p.dynatemp_exponent)));
    }

    // XTC (p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/6335): of the tokens that reach the
    // threshold only the one that ranks last stays, if there are several.
    void exclude_top(double threshold) {
        const double floor = threshold * sum(weight_.get(), kept_);
        const auto reaches = [&](int32_t i) { return weight_[i] > 0 && weight_[i] >= floor; };
        int32_t last = -1;
        for (int32_t i = 0; i < kept_; ++i) {
            if (reaches(i) && (last < 0 || x_[i] <= x_[last])) last = i;
        }
        const int32_t chosen = last < 0 ? -1 : id_[last];
        compress([&](int32_t i) { return !reaches(i) || id_[i] == chosen; });
    }

    // Mirostat (Basu et al. 2021, arXiv:2007.14966): the cut follows from how surprising the tokens before were.
    int32_t draw_mirostat(const float* row, float max, Draw& p) {
        gather(row, p.mirostat == 1 ? mirostat_top_k(row, p) : 0);
        weigh(max, p.temperature);
        if (p.mirostat == 2) {
            const double floor = sum(weight_.get(), kept_) * exp_of(-p.mirostat_mu * kLog2);
            if (floor <= *std::max_element(weight_.get(), weight_.get() + kept_)) {
                compress([&](int32_t i) { return weight_[i] >= floor; });
            } else { // even the likeliest is more surprising
                gather(row, 1);
                weigh(max, p.temperature);
            }
        }
        const int32_t chosen = draw(uniform(p.seed, p.position, p.choice, kToken));
        if (chosen < 0) return chosen;
        const double surprise = -log_of(weight_[chosen] / sum(weight_.get(), kept_)) / kLog2;
        p.mirostat_next_mu = p.mirostat_mu - p.mirostat_eta * (surprise - p.mirostat_tau);
        return token(chosen);
    }

    // The k whose draw surprises by mu, if probabilities fall as i^-s with the rank i (Zipf's law). s is the slope of
    // the first probabilities' logarithms, by least squares. As e = s - 1 becomes 0, (1 - N^-e) / e becomes ln N.
    int32_t mirostat_top_k(const float* row, const Draw& p) {
        int32_t ids[kZipf];
        double logits[kZipf];
        const int32_t count = rank(row, 0, std::min(kZipf, vocab_), ids, logits);
        double product = 0, square = 0;
        for (int32_t i = 0; i + 1 < count; ++i) {
            const double t = log_of((i + 2.0) / (i + 1.0));
            product += t * ((logits[i] - logits[i + 1]) / p.temperature);
            square += t * t;
        }
        if (count < 2) return 1;
        const double s = product / square, e = s - 1, log_count = log_of(vocab_);
        const double share = std::fabs(e) < 1e-6 ? log_count : (1 - exp_of(-e * log_count)) / e;
        const double k = exp_of((p.mirostat_mu * kLog2 - log_of(share)) / s);
        return k >= 1 ? int32_t(std::min(k, double(vocab_))) : 1;
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

    // The candidate at the inverse of their cumulative distribution in ascending id.
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
        return chosen;
    }

    int32_t token(int32_t candidate) const { return candidate < 0 ? candidate : id_[candidate]; }

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

    int32_t vocab_, longest_, blocks_;
    Array<float> row_;    // logits with bias, penalties and bans
    Array<float> x_;      // candidates: (logit - max) / temperature; then exponentials of log_sum
    Array<float> weight_; // candidates: e^x
    Array<int32_t> id_;   // candidates: ascending
    Array<Candidate> cut_;
    Array<int32_t> occurrences_, answered_; // per token; all zero between calls
    Array<float> block_max_;                // and room for a copy
    Array<double> block_sum_;
    Array<int32_t> lengths_; // of repetitions
    double deviation_ = 0;   // of the row, for top-n-sigma
    int32_t kept_ = 0;
};

} // namespace

// Bytes that a sampler of this vocabulary reserves which looks at so many tokens at most for repetitions.
LI_API int64_t li_sampler_bytes(int32_t vocab, int32_t longest) { return Sampler::bytes(vocab, longest); }

// Null if the vocabulary is empty or memory is short.
LI_API void* li_sampler_create(int32_t vocab, int32_t longest) {
    if (vocab < 1 || longest < 0) return nullptr;
    try {
        return new Sampler(vocab, longest);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

LI_API void li_sampler_destroy(void* sampler) { delete static_cast<Sampler*>(sampler); }

namespace {

bool well_formed(const Breakers& b) {
    return b.pair_count >= 0 && b.tail_count >= 0 &&
           (b.first == nullptr || (b.pairs != nullptr && b.tails != nullptr));
}

bool well_formed(const void* sampler, const float* logits, const Draw* draw) {
    return sampler != nullptr && logits != nullptr && draw != nullptr && draw->temperature >= 0 && draw->top_k >= 0 &&
           draw->from_prompt >= 0 && well_formed(draw->seen) && well_formed(draw->banned) &&
           well_formed(draw->biased) && (draw->biased.count == 0 || draw->bias != nullptr) && well_formed(draw->dry_text) &&
           draw->dry_allowed_length >= 0 && well_formed(draw->dry_breakers);
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

// The token drawn from `logits` [vocab], or an error as above; of `draw` only `mirostat_next_mu` is written. If `of_token` is not null, it and the `count` places of
// `ids` and `of_ids` receive what li_log_probabilities gives (of the logits as they came), and `found` how many.
LI_API int32_t li_sample(void* sampler, const float* logits, Draw* draw, double* of_token, int32_t count,
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

// The uniform number of a (seed, position, choice), for a purpose.
LI_API double li_uniform(uint64_t seed, uint64_t position, uint32_t choice, uint32_t purpose) {
    return uniform(seed, position, choice, purpose);
}

// Natural logarithm and exponential as the sampler calculates them, so that a test can compare them with others.
LI_API double li_log(double x) { return log_of(x); }
LI_API double li_exp(double x) { return exp_of(x); }
