// Row-wise operations on F8 lanes; see vector.h. Included once per instruction set.
#include "simd.h"
#include "vector.h"

namespace {

// Applies `f(F8...)` along `width` elements; the tail goes through a padded copy, so every element sees the same code.
template <class Function, class... Inputs> void map_lanes(int width, float* out, Function f, const Inputs*... in) {
    int i = 0;
    for (; i + 8 <= width; i += 8) f(F8::load(in + i)...).store(out + i);
    if (i < width) {
        float result[8];
        auto padded = [&](const float* p) {
            float copy[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            for (int j = 0; j < width - i; j++) copy[j] = p[i + j];
            return F8::load(copy);
        };
        f(padded(in)...).store(result);
        for (int j = 0; j < width - i; j++) out[i + j] = result[j];
    }
}

void rms_norm(const float* x, const float* weight, int width, int group, float eps, float* out) {
    for (int start = 0; start < width; start += group) {
        const float* run = x + start;
        // Four accumulators hide the latency of fma; the order is fixed by the position within the run.
        F8 a[4] = {F8::zero(), F8::zero(), F8::zero(), F8::zero()};
        int i = 0;
        for (; i + 32 <= group; i += 32)
            for (int j = 0; j < 4; j++) {
                F8 value = F8::load(run + i + 8 * j);
                a[j] = fma(value, value, a[j]);
            }
        float total = sum((a[0] + a[1]) + (a[2] + a[3]));
        for (; i < group; i++) total = std::fma(run[i], run[i], total);
        float factor = 1.0f / std::sqrt(total / float(group) + eps);
        F8 f = F8::all(factor);
        map_lanes(group, out + start, [=](F8 v, F8 w) { return v * f * w; }, run, weight);
    }
}

// The sum of f(element) over a row, whose order is fixed by the position within it.
template <class Function> inline float row_sum(const float* x, int width, Function f) {
    F8 a[4] = {F8::zero(), F8::zero(), F8::zero(), F8::zero()};
    int i = 0;
    for (; i + 32 <= width; i += 32)
        for (int j = 0; j < 4; j++) a[j] = f(F8::load(x + i + 8 * j), a[j]);
    float total = sum((a[0] + a[1]) + (a[2] + a[3]));
    for (; i < width; i++) {
        float lanes[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        f(F8::all(x[i]), F8::all(total)).store(lanes);
        total = lanes[0];
    }
    return total;
}

void layer_norm(const float* x, const float* weight, const float* bias, int width, float eps, float* out) {
    const float mean = row_sum(x, width, [](F8 v, F8 total) { return v + total; }) / float(width);
    const F8 m = F8::all(mean);
    const float variance = row_sum(x, width, [=](F8 v, F8 total) { return fma(v - m, v - m, total); }) / float(width);
    const F8 f = F8::all(1.0f / std::sqrt(variance + eps));
    if (bias)
        map_lanes(width, out, [=](F8 v, F8 w, F8 b) { return fma((v - m) * f, w, b); }, x, weight, bias);
    else
        map_lanes(width, out, [=](F8 v, F8 w) { return (v - m) * f * w; }, x, weight);
}

void add(const float* a, const float* b, int width, float* out) {
    map_lanes(width, out, [](F8 x, F8 y) { return x + y; }, a, b);
}

void scale(const float* x, float factor, int width, float* out) {
    F8 f = F8::all(factor);
    map_lanes(width, out, [=](F8 v) { return v * f; }, x);
}

inline F8 capped(F8 x, F8 cap) { return cap * hyperbolic_tangent(x / cap); }

void softcap(const float* x, float cap, int width, float* out) {
    F8 c = F8::all(cap);
    map_lanes(width, out, [=](F8 v) { return capped(v, c); }, x);
}

inline F8 silu(F8 x) { return x / (F8::all(1.0f) + exponential(F8::zero() - x)); }

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))) (Hendrycks & Gimpel 2016, arXiv:1606.08415)
inline F8 gelu_tanh(F8 x) {
    F8 inner = F8::all(0.79788456080286536f) * fma(F8::all(0.044715f) * x, x * x, x);
    return F8::all(0.5f) * x * (F8::all(1.0f) + hyperbolic_tangent(inner));
}

inline F8 gelu(F8 x) {
    float v[8];
    x.store(v);
    for (float& e : v) e = 0.5f * e * (1.0f + std::erf(e * 0.70710678118654752f));
    return F8::load(v);
}

void activate(const float* x, int activation, int width, float* out) {
    if (activation == li::kSilu)
        map_lanes(width, out, [](F8 v) { return silu(v); }, x);
    else if (activation == li::kGeluTanh)
        map_lanes(width, out, [](F8 v) { return gelu_tanh(v); }, x);
    else
        map_lanes(width, out, [](F8 v) { return gelu(v); }, x);
}

void glu(const float* gate, const float* up, int activation, int width, float* out) {
    if (activation == li::kSilu)
        map_lanes(width, out, [](F8 g, F8 u) { return silu(g) * u; }, gate, up);
    else if (activation == li::kGeluTanh)
        map_lanes(width, out, [](F8 g, F8 u) { return gelu_tanh(g) * u; }, gate, up);
    else
        map_lanes(width, out, [](F8 g, F8 u) { return gelu(g) * u; }, gate, up);
}

void rope(const float* x, const float* cosine, const float* sine, int heads, int head_dim, int pairs, int adjacent,
          float* out) {
    for (int h = 0; h < heads; h++, x += head_dim, out += head_dim) {
        for (int i = 0; i < pairs; i++) {
            int low = adjacent ? 2 * i : i, high = adjacent ? 2 * i + 1 : i + pairs;
            float a = x[low], b = x[high];
            out[low] = a * cosine[i] - b * sine[i];
            out[high] = a * sine[i] + b * cosine[i];
        }
        if (out != x)
            for (int i = 2 * pairs; i < head_dim; i++) out[i] = x[i];
    }
}

} // namespace

#include "attention.inl"
#include "attention_text.inl"
#include "statistics.inl"

namespace {

constexpr li::VectorKernels kTable = {rms_norm, layer_norm, add, scale, softcap, activate, glu, rope, kv_store,
                                     attend_chunk, attend_text, merge, add_statistics};

} // namespace
