// Numbers of several rows side by side: lane r belongs to row r, and no lane ever looks at another. So results do not
// depend on how many lanes there are, nor on the instructions that a compiler chooses: only single IEEE 754 additions,
// multiplications, divisions, comparisons and square roots exist (-ffp-contract=off), in the order written.
//
// Included once by each kernels_*.cpp, so that every instruction set has its own copy.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float V __attribute__((vector_size(4 * kLanes)));
typedef int32_t I __attribute__((vector_size(4 * kLanes)));

#define LI_INLINE inline __attribute__((always_inline))

LI_INLINE V all(float x) { return x - V{}; }
LI_INLINE I all_int(int32_t x) { return x - I{}; }
LI_INLINE I bits(V x) { return (I)x; }
LI_INLINE V from_bits(I x) { return (V)x; }
LI_INLINE V to_float(I x) { return __builtin_convertvector(x, V); }
LI_INLINE I to_int(V x) { return __builtin_convertvector(x, I); }
LI_INLINE V select(I mask, V a, V b) { return mask ? a : b; }
LI_INLINE I select_int(I mask, I a, I b) { return mask ? a : b; }
LI_INLINE V magnitude(V x) { return from_bits(bits(x) & 0x7fffffff); }

// a < b ? a : b and a > b ? a : b, which is what these instructions do, too.
#if defined(__AVX512F__)
LI_INLINE V min(V a, V b) { return (V)_mm512_min_ps((__m512)a, (__m512)b); }
LI_INLINE V max(V a, V b) { return (V)_mm512_max_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
LI_INLINE V min(V a, V b) { return (V)_mm256_min_ps((__m256)a, (__m256)b); }
LI_INLINE V max(V a, V b) { return (V)_mm256_max_ps((__m256)a, (__m256)b); }
#else
LI_INLINE V min(V a, V b) { return a < b ? a : b; }
LI_INLINE V max(V a, V b) { return a > b ? a : b; }
#endif

LI_INLINE V clamp(V x, float low, float high) { return min(max(x, all(low)), all(high)); }

// To the nearest integer, halves to even. |x| must be below 2^22.
LI_INLINE V round_even(V x) { return (x + 12582912.0f) - 12582912.0f; }

// To the nearest integer below or equal. |x| must be below 2^22.
LI_INLINE V floor_of(V x) {
    const V rounded = round_even(x);
    return select(rounded > x, rounded - 1.0f, rounded);
}

// 1 / x, or 0 where x is 0.
LI_INLINE V inverse(V x) { return select(x == 0.0f, V{}, 1.0f / select(x == 0.0f, all(1.0f), x)); }

LI_INLINE V square_root(V x) {
    V root;
    for (int lane = 0; lane < kLanes; lane++) root[lane] = __builtin_sqrtf(x[lane]);
    return root;
}

// 2^exponent for -128 <= exponent <= 127; the lowest two are subnormal.
LI_INLINE V power_of_two(I exponent) {
    const I normal = (exponent + 127) << 23, subnormal = select_int(exponent == -127, all_int(0x400000), all_int(0x200000));
    return from_bits(select_int(exponent < -126, subnormal, normal));
}

constexpr float kLargestHalf = 65504.0f;

// To the nearest binary16 number, halves to even; beyond the largest one, that.
LI_INLINE V round_half(V x) {
    const I sign = bits(x) & int32_t(0x80000000u);
    const V positive = min(magnitude(x), all(kLargestHalf));
    const I raw = bits(positive);
    const V normal = from_bits((raw + 0xfff + ((raw >> 13) & 1)) & ~0x1fff);
    const V subnormal = (positive + 0.5f) - 0.5f; // 0.5 has the spacing of subnormal halves
    const V rounded = min(select(positive < 0x1p-14f, subnormal, normal), all(kLargestHalf));
    return from_bits(bits(rounded) | sign);
}

// To the nearest number whose lower 16 bits are zero (bfloat16), halves to even.
LI_INLINE V round_bfloat(V x) { return from_bits((bits(x) + 0x7fff + ((bits(x) >> 16) & 1)) & ~0xffff); }

// The bits of a number that round_half gave.
LI_INLINE I half_bits(V x) {
    const I sign = (bits(x) >> 16) & 0x8000;
    const V positive = magnitude(x);
    const I normal = (bits(positive) >> 13) - (112 << 10);
    const I subnormal = to_int(positive * 0x1p24f);
    return select_int(positive < 0x1p-14f, subnormal, normal) | sign;
}

} // namespace
