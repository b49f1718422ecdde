// Small vector pieces that both x86 instruction sets use, included inside an anonymous namespace.

#define LI_INLINE static inline __attribute__((always_inline))

// How a weight is stored: unsigned with 4, 5 or 6 bits, or a signed byte.
enum class Weight { u4, u5, u6, s8 };

LI_INLINE __m256i load(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

LI_INLINE __m256 load_halves(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

LI_INLINE __m256 broadcast(const float* p) {
    return _mm256_broadcast_ss(p);
}

LI_INLINE __m256i broadcast4(const int8_t* q) {
    int32_t word;
    std::memcpy(&word, q, 4);
    return _mm256_set1_epi32(word);
}

LI_INLINE __m128i load8(const int8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}

// Byte patterns that bring byte s (0 ... 3) of each 4-byte lane to the low byte of the lane, or of both its halves.
alignas(32) constexpr uint8_t kLaneByte[4][32] = {
#define LI_LANE(s) 0 + s, 128, 128, 128, 4 + s, 128, 128, 128, 8 + s, 128, 128, 128, 12 + s, 128, 128, 128
    {LI_LANE(0), LI_LANE(0)}, {LI_LANE(1), LI_LANE(1)}, {LI_LANE(2), LI_LANE(2)}, {LI_LANE(3), LI_LANE(3)}
#undef LI_LANE
};
alignas(32) constexpr uint8_t kLanePair[4][32] = {
#define LI_LANE(s) 0 + s, 128, 0 + s, 128, 4 + s, 128, 4 + s, 128, 8 + s, 128, 8 + s, 128, 12 + s, 128, 12 + s, 128
    {LI_LANE(0), LI_LANE(0)}, {LI_LANE(1), LI_LANE(1)}, {LI_LANE(2), LI_LANE(2)}, {LI_LANE(3), LI_LANE(3)}
#undef LI_LANE
};
