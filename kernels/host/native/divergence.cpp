// How far apart two rows of logits are, and how surprising a token is: in double, over the whole vocabulary.
#include "api.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace {

constexpr int kLanes = 8;         // sums that run side by side; their number is part of the result's last bits
constexpr double kFloor = -700.0; // logits are at least so far above it, below their maximum: exp is not 0 yet

// e^x for kFloor <= x <= 0, with an error of some units in the last place: 2^n times a polynomial on half of ln 2 to
// either side. Written out, since it is called 262,144 times a row, and so that loops over lanes become vectors.
inline double exponential(double x) {
    constexpr double log2e = 1.4426950408889634, ln2_high = 0.693147180369123816490, ln2_low = 1.90821492927058770002e-10;
    constexpr double magic = 6755399441055744.0; // 1.5 * 2^52: what is added to it loses its fraction
    const double shifted = x * log2e + magic, n = shifted - magic;
    const double r = (x - n * ln2_high) - n * ln2_low;
    double p = 1.0 / 479001600.0; // 1/12!
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t exponent, bits;
    std::memcpy(&exponent, &shifted, 8);
    std::memcpy(&bits, &p, 8);
    bits += exponent << 52;
    std::memcpy(&p, &bits, 8);
    return p;
}

struct Top {
    float value;
    int32_t index; // the first of equal ones; -1 if a logit is not a number, or all are -inf
};

Top top_of(const float* row, int32_t size) {
    float lanes[kLanes];
    bool numbers = true;
    std::fill(lanes, lanes + kLanes, -std::numeric_limits<float>::infinity());
    int32_t i = 0;
    for (; i + kLanes <= size; i += kLanes)
        for (int j = 0; j < kLanes; j++) {
            numbers &= row[i + j] == row[i + j];
            lanes[j] = lanes[j] < row[i + j] ? row[i + j] : lanes[j];
        }
    for (; i < size; i++) {
        numbers &= row[i] == row[i];
        lanes[0] = std::max(lanes[0], row[i]);
    }
    const float best = *std::max_element(lanes, lanes + kLanes);
    if (!numbers || !std::isfinite(best)) return {best, -1};
    return {best, int32_t(std::find(row, row + size, best) - row)};
}

inline double below(float logit, float top) { return std::max(double(logit) - double(top), kFloor); }

struct Sums {
    double p[kLanes] = {}, q[kLanes] = {}, difference[kLanes] = {};
};

inline double total(const double* lanes) {
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

} // namespace

// losses[r] = -log softmax(logits[r])[targets[r]], in nats. Returns the number of rows done: fewer than `rows` if the
// next one holds something that is not a number, or -1 if an argument is out of range.
LI_API int32_t li_row_losses(const float* logits, int32_t rows, int32_t size, const int32_t* targets, double* losses) {
    if (!logits || !targets || !losses || rows < 0 || size < 1) return -1;
    for (int32_t r = 0; r < rows; r++) {
        if (targets[r] < 0 || targets[r] >= size) return -1;
        const float* row = logits + int64_t{r} * size;
        const Top top = top_of(row, size);
        if (top.index < 0) return r;
        double lanes[kLanes] = {};
        int32_t i = 0;
        for (; i + kLanes <= size; i += kLanes)
            for (int j = 0; j < kLanes; j++) lanes[j] += exponential(below(row[i + j], top.value));
        for (; i < size; i++) lanes[0] += exponential(below(row[i], top.value));
        losses[r] = std::log(total(lanes)) - below(row[targets[r]], top.value);
    }
    return rows;
}

// Each row of `p` (the source) against the same row of `q`; out[r] = loss of p, loss of q, KL(p || q), 1 if both have the
// same largest logit. KL = sum over i of p_i (log p_i - log q_i); equal rows give exactly 0. Returns as li_row_losses.
LI_API int32_t li_row_divergences(const float* p, const float* q, int32_t rows, int32_t size, const int32_t* targets,
                                  double* out) {
    if (!p || !q || !targets || !out || rows < 0 || size < 1) return -1;
    for (int32_t r = 0; r < rows; r++, out += 4) {
        const int32_t target = targets[r];
        if (target < 0 || target >= size) return -1;
        const float *a = p + int64_t{r} * size, *b = q + int64_t{r} * size;
        const Top top_a = top_of(a, size), top_b = top_of(b, size);
        if (top_a.index < 0 || top_b.index < 0) return r;
        Sums s;
        auto take = [&](int32_t i, int j) {
            const double x = below(a[i], top_a.value), y = below(b[i], top_b.value), weight = exponential(x);
            s.p[j] += weight;
            s.q[j] += exponential(y);
            s.difference[j] += weight * (x - y);
        };
        int32_t i = 0;
        for (; i + kLanes <= size; i += kLanes)
            for (int j = 0; j < kLanes; j++) take(i + j, j);
        for (; i < size; i++) take(i, 0);
        const double sum_p = total(s.p), log_p = std::log(sum_p), log_q = std::log(total(s.q));
        out[0] = log_p - below(a[target], top_a.value);
        out[1] = log_q - below(b[target], top_b.value);
        out[2] = std::max(0.0, total(s.difference) / sum_p - log_p + log_q);
        out[3] = top_a.index == top_b.index;
    }
    return rows;
}
