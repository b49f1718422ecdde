// The matrix products for AVX2: int8 products by vpmaddubsw, pairs of which are summed in 16 bits as far as they fit.
#include "matmul.h"
#include "matmul_layout.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include <cstring>
#include <type_traits>

namespace li {
namespace {

#include "matmul_vectors.inl"

constexpr bool kManyRegisters = false; // 32 vector registers, not 16
constexpr bool kOffsetWeights = false;
using Scale = __m256i; // the integer scale in both 16-bit halves of a row's lane

// The vectors of the tiles.
using WideInt = __m256i;
using WideFloat = __m256;
constexpr int kWideLanes = 8;
LI_INLINE WideFloat wide_zero() {
    return _mm256_setzero_ps();
}
LI_INLINE WideFloat wide_load(const float* p) {
    return _mm256_load_ps(p);
}
LI_INLINE WideFloat wide_broadcast(const float* p) {
    return _mm256_broadcast_ss(p);
}
LI_INLINE void wide_store(float* p, WideFloat v) {
    _mm256_store_ps(p, v);
}
LI_INLINE WideFloat wide_from_int(WideInt v) {
    return _mm256_cvtepi32_ps(v);
}
LI_INLINE WideFloat wide_mul(WideFloat a, WideFloat b) {
    return _mm256_mul_ps(a, b);
}
LI_INLINE WideFloat wide_fma(WideFloat a, WideFloat b, WideFloat c) {
    return _mm256_fmadd_ps(a, b, c);
}
LI_INLINE WideFloat wide_fnma(WideFloat a, WideFloat b, WideFloat c) {
    return _mm256_fnmadd_ps(a, b, c);
}

LI_INLINE Scale lane_scale(__m256i bytes, int lane) {
    return _mm256_shuffle_epi8(bytes, load(kLanePair[lane]));
}

LI_INLINE Scale byte_scale(const int8_t* p) {
    const __m128i bytes = load8(p);
    return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(bytes, bytes));
}

// The integer sums, times `scale` in both halves of a lane. 16-bit sums of products with |q| <= 127: four times two
// of at most 31 * 127 fit, two times two of 63 * 127, one times two of 128 * 127.
template <Weight weight>
LI_INLINE __m256i integer_dot(const __m256i* w, const int8_t* q, __m256i scale) {
    const __m256i x0 = broadcast4(q), x1 = broadcast4(q + 4), x2 = broadcast4(q + 8), x3 = broadcast4(q + 12);
    if constexpr (weight == Weight::s8) {
        const __m256i p0 = _mm256_maddubs_epi16(_mm256_abs_epi8(w[0]), _mm256_sign_epi8(x0, w[0]));
        const __m256i p1 = _mm256_maddubs_epi16(_mm256_abs_epi8(w[1]), _mm256_sign_epi8(x1, w[1]));
        const __m256i p2 = _mm256_maddubs_epi16(_mm256_abs_epi8(w[2]), _mm256_sign_epi8(x2, w[2]));
        const __m256i p3 = _mm256_maddubs_epi16(_mm256_abs_epi8(w[3]), _mm256_sign_epi8(x3, w[3]));
        return _mm256_add_epi32(_mm256_add_epi32(_mm256_madd_epi16(p0, scale), _mm256_madd_epi16(p1, scale)),
                                _mm256_add_epi32(_mm256_madd_epi16(p2, scale), _mm256_madd_epi16(p3, scale)));
    } else {
        const __m256i s0 = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], x0), _mm256_maddubs_epi16(w[1], x1));
        const __m256i s1 = _mm256_add_epi16(_mm256_maddubs_epi16(w[2], x2), _mm256_maddubs_epi16(w[3], x3));
        if constexpr (weight == Weight::u6)
            return _mm256_add_epi32(_mm256_madd_epi16(s0, scale), _mm256_madd_epi16(s1, scale));
        else
            return _mm256_madd_epi16(_mm256_add_epi16(s0, s1), scale);
    }
}

template <Weight weight>
LI_INLINE __m256 dot(const __m256i* w, const int8_t* q, const int32_t*) {
    return _mm256_cvtepi32_ps(integer_dot<weight>(w, q, _mm256_set1_epi16(1)));
}

template <Weight weight>
LI_INLINE __m256 dot_scaled(const __m256i* w, const int8_t* q, Scale scale) {
    return _mm256_cvtepi32_ps(integer_dot<weight>(w, q, scale));
}

// Tokens per tile: more would not leave enough registers for addresses.
constexpr int tile_tokens(Weight) {
    return 4;
}

// Stops the compiler from reordering a sum of integers into a tree, for which there are not enough registers.
LI_INLINE void keep_order(__m256i& sum) {
    asm("" : "+x"(sum));
}

// 16-bit sums over `count` steps of 4 k.
template <int T>
LI_INLINE void short_sums(const uint8_t (*steps)[64], const int8_t* q, size_t stride, int count, __m256i (*sum)[2]) {
#pragma GCC unroll 4
    for (int c = 0; c < count; c++) {
        const __m256i w0 = load(steps[c]), w1 = load(steps[c] + 32);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m256i x = broadcast4(q + t * stride + 4 * c);
            const __m256i p0 = _mm256_maddubs_epi16(w0, x), p1 = _mm256_maddubs_epi16(w1, x);
            sum[t][0] = c ? _mm256_add_epi16(sum[t][0], p0) : p0;
            keep_order(sum[t][0]);
            sum[t][1] = c ? _mm256_add_epi16(sum[t][1], p1) : p1;
            keep_order(sum[t][1]);
        }
    }
}

// 16-bit sums of products over 4 k each hold as long as in integer_dot.
template <Weight weight, int T>
LI_INLINE void tile_integer_dot(const uint8_t (*steps)[64], const int8_t* q, size_t stride, const __m256i* scale,
                                __m256i (*sum)[2]) {
    if constexpr (weight == Weight::s8) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++) {
                const __m256i w = load(steps[c] + 32 * r), magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) {
                    const __m256i x = _mm256_sign_epi8(broadcast4(q + t * stride + 4 * c), w);
                    const __m256i p = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, x), scale[r]);
                    sum[t][r] = c ? _mm256_add_epi32(sum[t][r], p) : p;
                    keep_order(sum[t][r]);
                }
            }
        }
    } else if constexpr (weight == Weight::u6) {
        __m256i room[T][2], (*low)[2] = room;
        asm("" : "+r"(low)); // in memory: the second half needs the registers
        short_sums<T>(steps, q, stride, 2, sum);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++)
                low[t][r] = _mm256_madd_epi16(sum[t][r], scale[r]);
        short_sums<T>(steps + 2, q + 8, stride, 2, sum);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++)
                sum[t][r] = _mm256_add_epi32(low[t][r], _mm256_madd_epi16(sum[t][r], scale[r]));
    } else {
        short_sums<T>(steps, q, stride, 4, sum);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++)
                sum[t][r] = _mm256_madd_epi16(sum[t][r], scale[r]);
    }
}

template <Weight weight, int T>
LI_INLINE void tile_dot(const uint8_t (*steps)[64], const int8_t* q, size_t stride, const int32_t*, size_t,
                        __m256i (*sum)[2]) {
    const __m256i ones[2] = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
    tile_integer_dot<weight, T>(steps, q, stride, ones, sum);
}

template <Weight weight, int T>
LI_INLINE void tile_dot_scaled(const uint8_t (*steps)[64], const int8_t* q, size_t stride, const uint8_t* scales,
                               __m256i (*sum)[2]) {
    const __m256i scale[2] = {load(scales), load(scales + 32)};
    tile_integer_dot<weight, T>(steps, q, stride, scale, sum);
}

#include "matmul_x86.inl"

} // namespace

const MatmulKernels* matmul_avx2() {
    static const MatmulKernels kernels = {common_integer_type, common_group_bytes, common_pack_group,
                                          common_unpack_row,   quantize_row,       multiply};
    return &kernels;
}

} // namespace li

#else

namespace li {

const MatmulKernels* matmul_avx2() {
    return nullptr;
}

} // namespace li

#endif
