// The matrix products for AVX-512 VNNI with 256-bit vectors: four int8 products per lane and instruction (vpdpbusd).
#include "matmul.h"
#include "matmul_layout.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#include <cstring>

// GCC 12 warns of its own _mm512_undefined_ps when _mm512_cvtepi32_ps is inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#define LI_INLINE static inline __attribute__((always_inline))

namespace li {
namespace {

enum class Weight { u4, u5, u6, s8 };

// vpdpbusd takes unsigned weights, so signed ones are stored plus 128 and 128 * (sum of q) is subtracted.
constexpr bool kManyRegisters = true; // 32 vector registers, not 16
constexpr bool kOffsetWeights = true;
using Scale = __m256i; // 32-bit lanes

extern const uint8_t kLaneByte[4][32];

LI_INLINE __m256i broadcast4(const int8_t* q) {
    int32_t word;
    __builtin_memcpy(&word, q, 4);
    return _mm256_set1_epi32(word);
}

LI_INLINE Scale lane_scale(__m256i bytes, int lane);

LI_INLINE Scale byte_scale(const int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
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

constexpr bool kFixedTiles = true; // one kernel per number of tokens
constexpr int kTileTokens = 6;     // tokens that pass over a panel together
#define LI_TILES "matmul_tiles_vnni.inl"
#include "matmul_x86.inl"

LI_INLINE Scale lane_scale(__m256i bytes, int lane) {
    return _mm256_shuffle_epi8(bytes, load(kLaneByte[lane]));
}

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
