// The matrix products for AVX-512 VNNI with 256-bit vectors: four int8 products per lane and instruction (vpdpbusd).
#include "matmul.h"
#include "matmul_layout.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#include <cstring>
#include <type_traits>

// GCC 12 warns of its own _mm512_undefined_ps when _mm512_cvtepi32_ps is inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

namespace li {
namespace {

#include "matmul_vectors.inl"

// vpdpbusd takes unsigned weights, so signed ones are stored plus 128 and 128 * (sum of q) is subtracted.
constexpr bool kManyRegisters = true; // 32 vector registers, not 16
constexpr bool kOffsetWeights = true;
using Scale = __m256i; // 32-bit lanes

// The vectors of the tiles: 512 bits, since a broadcast activation then serves twice as many rows.
using WideInt = __m512i;
using WideFloat = __m512;
constexpr int kWideLanes = 16;
LI_INLINE WideFloat wide_zero() {
    return _mm512_setzero_ps();
}
LI_INLINE WideFloat wide_load(const float* p) {
    return _mm512_load_ps(p);
}
LI_INLINE WideFloat wide_broadcast(const float* p) {
    return _mm512_set1_ps(*p);
}
LI_INLINE void wide_store(float* p, WideFloat v) {
    _mm512_store_ps(p, v);
}
LI_INLINE WideFloat wide_from_int(WideInt v) {
    return _mm512_cvtepi32_ps(v);
}
LI_INLINE WideFloat wide_mul(WideFloat a, WideFloat b) {
    return _mm512_mul_ps(a, b);
}
LI_INLINE WideFloat wide_fma(WideFloat a, WideFloat b, WideFloat c) {
    return _mm512_fmadd_ps(a, b, c);
}
LI_INLINE WideFloat wide_fnma(WideFloat a, WideFloat b, WideFloat c) {
    return _mm512_fnmadd_ps(a, b, c);
}
LI_INLINE WideInt wide_broadcast4(const int8_t* q) {
    int32_t word;
    std::memcpy(&word, q, 4);
    return _mm512_set1_epi32(word);
}

LI_INLINE Scale lane_scale(__m256i bytes, int lane) {
    return _mm256_shuffle_epi8(bytes, load(kLaneByte[lane]));
}

LI_INLINE Scale byte_scale(const int8_t* p) {
    return _mm256_cvtepi8_epi32(load8(p));
}

template <Weight weight>
LI_INLINE __m256i integer_dot(const __m256i* w, const int8_t* q, const int32_t* offset) {
    __m256i sum = weight == Weight::s8 ? _mm256_set1_epi32(*offset) : _mm256_setzero_si256();
    sum = _mm256_dpbusd_epi32(sum, w[0], broadcast4(q));
    sum = _mm256_dpbusd_epi32(sum, w[1], broadcast4(q + 4));
    sum = _mm256_dpbusd_epi32(sum, w[2], broadcast4(q + 8));
    sum = _mm256_dpbusd_epi32(sum, w[3], broadcast4(q + 12));
    return sum;
}

template <Weight weight>
LI_INLINE __m256 dot(const __m256i* w, const int8_t* q, const int32_t* offset) {
    return _mm256_cvtepi32_ps(integer_dot<weight>(w, q, offset));
}

template <Weight weight>
LI_INLINE __m256 dot_scaled(const __m256i* w, const int8_t* q, Scale scale) {
    return _mm256_cvtepi32_ps(_mm256_mullo_epi32(integer_dot<weight>(w, q, nullptr), scale));
}

// Tokens per tile: as many as have their integer and float sums in registers.
constexpr int tile_tokens(Weight) {
    return 6;
}

template <Weight weight, int T>
LI_INLINE void tile_dot(const uint8_t (*steps)[128], const int8_t* q, size_t stride, const int32_t* offset,
                        size_t offset_stride, WideInt (*sum)[2]) {
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        sum[t][0] = sum[t][1] =
            weight == Weight::s8 ? _mm512_set1_epi32(offset[t * offset_stride]) : _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const WideInt w0 = _mm512_load_si512(steps[c]), w1 = _mm512_load_si512(steps[c] + 64);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const WideInt x = wide_broadcast4(q + t * stride + 4 * c);
            sum[t][0] = _mm512_dpbusd_epi32(sum[t][0], w0, x);
            sum[t][1] = _mm512_dpbusd_epi32(sum[t][1], w1, x);
        }
    }
}

template <Weight weight, int T>
LI_INLINE void tile_dot_scaled(const uint8_t (*steps)[128], const int8_t* q, size_t stride, const uint8_t* scales,
                               WideInt (*sum)[2]) {
    const WideInt scale[2] = {_mm512_load_si512(scales), _mm512_load_si512(scales + 64)};
    tile_dot<weight, T>(steps, q, stride, nullptr, 0, sum);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++)
            sum[t][r] = _mm512_mullo_epi32(sum[t][r], scale[r]);
}

#include "matmul_x86.inl"

} // namespace

const MatmulKernels* matmul_avx512vnni() {
    static const MatmulKernels kernels = {common_integer_type, common_group_bytes, common_pack_group,
                                          common_unpack_row,   quantize_row,       multiply};
    return &kernels;
}

} // namespace li

#else

namespace li {

const MatmulKernels* matmul_avx512vnni() {
    return nullptr;
}

} // namespace li

#endif
