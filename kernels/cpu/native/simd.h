// Eight float lanes, written twice: AVX2 where the file is compiled for it, plain C++ elsewhere. Both give the
// same bits for every operation here, so code written once on top of F8 is bit-identical on every machine.
//
// For products of integers, beside F8:
//   I8      eight int32
//   Pairs   two int16 in each of eight lanes; dot(a, b, c) is c + a.first * b.first + a.second * b.second in each lane
//   Quads   four int8 in each of eight lanes, 0 1 2 3, widened to two Pairs: even (0, 2) and odd (1, 3), which takes no
//           shuffles. What they are multiplied with is kept in that order: store_int16_quads rounds eight floats (at
//           most 32767 in size) to int16 and writes each four as 0 2 1 3.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define LI_SIMD_AVX2 1
#endif

namespace {

inline float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

// bfloat16 to and from float, rounding to nearest, ties to even (NaN stays NaN).
inline uint16_t float_to_bf16(float value) {
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 0x40);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float bf16_to_float(uint16_t half) { return bits_to_float(uint32_t(half) << 16); }

#ifdef LI_SIMD_AVX2

struct F8 {
    __m256 v;
    static F8 zero() { return {_mm256_setzero_ps()}; }
    static F8 all(float x) { return {_mm256_set1_ps(x)}; }
    static F8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static F8 load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
    static F8 load_bf16(const uint16_t* p) {
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16))};
    }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
};

inline F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F8 max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F8 min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F8 abs(F8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline F8 round_to_even(F8 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// if_less(a, b, x, y): x where a < b, else y.
inline F8 if_less(F8 a, F8 b, F8 x, F8 y) {
    return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
// 2^n for whole n in [-126, 127].
inline F8 power_of_two(F8 n) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))};
}
inline float f16_to_float(uint16_t half) { return _cvtsh_ss(half); }
inline uint16_t float_to_f16(float value) { return uint16_t(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)); }

struct Pairs {
    __m256i v;
    static Pairs all(const int16_t* pair) {
        int32_t bits;
        std::memcpy(&bits, pair, 4);
        return {_mm256_set1_epi32(bits)};
    }
};

struct I8 {
    __m256i v;
    static I8 zero() { return {_mm256_setzero_si256()}; }
};

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
inline I8 dot(Pairs a, Pairs b, I8 c) { return {_mm256_dpwssd_epi32(c.v, a.v, b.v)}; }
#else
inline I8 dot(Pairs a, Pairs b, I8 c) { return {_mm256_add_epi32(c.v, _mm256_madd_epi16(a.v, b.v))}; }
#endif
inline F8 to_float(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }

struct Quads {
    Pairs even, odd;
    static Quads load(const uint8_t* p) {
        __m256i x = _mm256_loadu_si256((const __m256i*)p);
        return {{_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8)}, {_mm256_srai_epi16(x, 8)}};
    }
};

inline void store_int16_quads(F8 a, int16_t* out) {
    __m256i x = _mm256_cvtps_epi32(a.v);
    __m128i in_order = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    __m128i swap = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    _mm_storeu_si128((__m128i*)out, _mm_shuffle_epi8(in_order, swap));
}

#else

struct F8 {
    float v[8];
    template <class Function> static F8 make(Function f) {
        F8 r;
        for (int i = 0; i < 8; i++) r.v[i] = f(i);
        return r;
    }
    static F8 zero() { return all(0.0f); }
    static F8 all(float x) {
        return make([=](int) { return x; });
    }
    static F8 load(const float* p) {
        return make([=](int i) { return p[i]; });
    }
    static inline F8 load_f16(const uint16_t* p);
    static F8 load_bf16(const uint16_t* p) {
        return make([=](int i) { return bf16_to_float(p[i]); });
    }
    void store(float* p) const { std::memcpy(p, v, 32); }
};

inline F8 operator+(F8 a, F8 b) {
    return F8::make([&](int i) { return a.v[i] + b.v[i]; });
}
inline F8 operator-(F8 a, F8 b) {
    return F8::make([&](int i) { return a.v[i] - b.v[i]; });
}
inline F8 operator*(F8 a, F8 b) {
    return F8::make([&](int i) { return a.v[i] * b.v[i]; });
}
inline F8 operator/(F8 a, F8 b) {
    return F8::make([&](int i) { return a.v[i] / b.v[i]; });
}
inline F8 fma(F8 a, F8 b, F8 c) {
    return F8::make([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline F8 max(F8 a, F8 b) {
    return F8::make([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F8 min(F8 a, F8 b) {
    return F8::make([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F8 abs(F8 a) {
    return F8::make([&](int i) { return std::fabs(a.v[i]); });
}
inline F8 round_to_even(F8 a) {
    return F8::make([&](int i) { return std::nearbyint(a.v[i]); });
}
inline F8 if_less(F8 a, F8 b, F8 x, F8 y) {
    return F8::make([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
inline F8 power_of_two(F8 n) {
    return F8::make([&](int i) { return bits_to_float(uint32_t(int32_t(n.v[i]) + 127) << 23); });
}

inline float f16_to_float(uint16_t half) {
    uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = (half >> 10) & 31, mantissa = half & 1023;
    if (exponent == 0) return bits_to_float(sign | float_to_bits(float(mantissa) * 0x1p-24f));
    if (exponent == 31) return bits_to_float(sign | 0x7f800000 | (mantissa ? mantissa << 13 | 0x400000 : 0));
    return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline uint16_t float_to_f16(float value) {
    uint32_t bits = float_to_bits(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00); // rounds to 2^16 or more: infinity
    if (magnitude < 0x38800000) {                                // subnormal: let the float adder round
        float rounded = bits_to_float(magnitude) + 0.5f;
        return uint16_t(sign | (float_to_bits(rounded) - float_to_bits(0.5f)));
    }
    return uint16_t(sign | ((magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13));
}

inline F8 F8::load_f16(const uint16_t* p) {
    return make([=](int i) { return f16_to_float(p[i]); });
}

struct Pairs {
    int16_t v[16];
    static Pairs all(const int16_t* pair) {
        Pairs r;
        for (int i = 0; i < 16; i++) r.v[i] = pair[i & 1];
        return r;
    }
};

struct I8 {
    int32_t v[8];
    static I8 zero() { return {{0, 0, 0, 0, 0, 0, 0, 0}}; }
};

inline I8 dot(Pairs a, Pairs b, I8 c) {
    for (int i = 0; i < 8; i++)
        c.v[i] += int32_t(a.v[2 * i]) * b.v[2 * i] + int32_t(a.v[2 * i + 1]) * b.v[2 * i + 1];
    return c;
}
inline F8 to_float(I8 a) {
    return F8::make([&](int i) { return float(a.v[i]); });
}

struct Quads {
    Pairs even, odd;
    static Quads load(const uint8_t* p) {
        Quads r;
        for (int i = 0; i < 16; i++) {
            r.even.v[i] = int8_t(p[2 * i]);
            r.odd.v[i] = int8_t(p[2 * i + 1]);
        }
        return r;
    }
};

inline void store_int16_quads(F8 a, int16_t* out) {
    const int order[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    for (int i = 0; i < 8; i++) out[i] = int16_t(std::nearbyint(a.v[order[i]]));
}

#endif

// Sum and maximum over the lanes, in one fixed tree: ((0+4)+(2+6)) + ((1+5)+(3+7)).
inline float sum(F8 a) {
    float x[8];
    a.store(x);
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

inline float largest(F8 a) {
    float x[8];
    a.store(x);
    float best = x[0];
    for (int i = 1; i < 8; i++) best = x[i] > best ? x[i] : best;
    return best;
}

// e^x to within 2 units in the last place; 0 below -87.3, finite above 88.
// Range reduction by ln 2 in two parts and a degree-5 polynomial on [-ln2/2, ln2/2] (Cephes expf).
inline F8 exponential(F8 x) {
    F8 clamped = min(max(x, F8::all(-87.3f)), F8::all(88.0f));
    F8 n = round_to_even(clamped * F8::all(1.44269504088896341f));
    F8 r = fma(n, F8::all(-0.693359375f), clamped);
    r = fma(n, F8::all(2.12194440e-4f), r);
    F8 p = F8::all(1.9875691500e-4f);
    p = fma(p, r, F8::all(1.3981999507e-3f));
    p = fma(p, r, F8::all(8.3334519073e-3f));
    p = fma(p, r, F8::all(4.1665795894e-2f));
    p = fma(p, r, F8::all(1.6666665459e-1f));
    p = fma(p, r, F8::all(5.0000001201e-1f));
    p = fma(p, r * r, r + F8::all(1.0f));
    return if_less(x, F8::all(-87.3f), F8::zero(), p * power_of_two(n));
}

// tanh x: a polynomial in x² near 0, where 1 - 2 / (e^2x + 1) would cancel (Cephes tanhf).
inline F8 hyperbolic_tangent(F8 x) {
    F8 z = x * x;
    F8 p = F8::all(-5.70498872745e-3f);
    p = fma(p, z, F8::all(2.06390887954e-2f));
    p = fma(p, z, F8::all(-5.37397155531e-2f));
    p = fma(p, z, F8::all(1.33314422036e-1f));
    p = fma(p, z, F8::all(-3.33332819422e-1f));
    F8 small = fma(p * z, x, x);
    F8 one = F8::all(1.0f);
    F8 magnitude = one - F8::all(2.0f) / (exponential(abs(x) + abs(x)) + one);
    F8 large = if_less(x, F8::zero(), F8::zero() - magnitude, magnitude);
    return if_less(abs(x), F8::all(0.625f), small, large);
}

} // namespace
