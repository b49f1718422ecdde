// How packed groups of 8 rows look in memory, one struct per block of each fast type. The bytes are those of the blocks
// of 8 rows in a file, reordered so that one 256-bit load holds 4 consecutive k of each of 8 rows.
//
// In a vector of 32 bytes, byte 4 * r + i belongs to row r. With c = 0 ... 3:
//   low[c]   low nibble: k = 4c + i, high nibble: k = 16 + 4c + i        (the low 4 bits of a weight)
//   high     one bit per weight (5-bit types): bit c: k = 4c + i, bit 4 + c: k = 16 + 4c + i
//   high[h]  two bits per weight (Q6_K): bits 2c, 2c + 1: k = 16h + 4c + i
//   q[c]     c = 0 ... 7, k = 4c + i                                     (Q8_0, I8, F8)
// Groups of F8 end with a bit per 32 k: whether all weights have an exponent field that is not zero.
// F32, F16, BF16 are stored as [k][8 rows]; every other type as 8 GGUF rows, one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "matmul.h"

namespace li {

enum TensorTypeId : int32_t {
    kF32 = 0,
    kF16 = 1,
    kQ4_0 = 2,
    kQ4_1 = 3,
    kQ5_0 = 6,
    kQ5_1 = 7,
    kQ8_0 = 8,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
    kBF16 = 30,
    // Our own, see kernels/reference/dequantize.py.
    kI8_32 = 1000,
    kI8_128 = 1001,
    kI4_32 = 1002,
    kI4_64 = 1003,
    kI4_128 = 1004,
    kF8_32 = 1005,
    kF8_128 = 1006,
};

struct PackedQ4_0 {
    uint16_t d[8];
    uint8_t low[4][32];
};
struct PackedQ4_1 {
    uint16_t d[8], m[8];
    uint8_t low[4][32];
};
struct PackedQ5_0 {
    uint16_t d[8];
    uint8_t low[4][32], high[32];
};
struct PackedQ5_1 {
    uint16_t d[8], m[8];
    uint8_t low[4][32], high[32];
};
struct PackedQ8_0 {
    uint16_t d[8];
    int8_t q[8][32];
};
// `scales`: the three 4-byte words of a GGUF block's 12 scale bytes, word w of row r at scales[w][4 * r].
struct PackedQ4_K {
    uint16_t d[8], m[8];
    uint8_t scales[3][32];
    struct {
        uint8_t low[4][32];
    } sub[8];
};
struct PackedQ5_K {
    uint16_t d[8], m[8];
    uint8_t scales[3][32];
    struct {
        uint8_t low[4][32], high[32];
    } sub[8];
};
struct PackedQ6_K {
    uint16_t d[8];
    int8_t scales[16][8];
    struct {
        uint8_t low[4][32], high[2][32];
    } sub[8];
};
// Types of our own, with blocks of `Subs` times 32 weights.
template <int Subs> struct PackedI8 {
    float d[8];
    int8_t zero[8];
    struct {
        int8_t q[8][32];
    } sub[Subs];
};
template <int Subs> struct PackedI4 {
    float d[8];
    int8_t zero[8];
    struct {
        uint8_t low[4][32];
    } sub[Subs];
};
template <int Subs> struct PackedF8 {
    float d[8];
    struct {
        uint8_t q[8][32];
    } sub[Subs];
};
static_assert(sizeof(PackedI8<1>) == 8 * 37 && sizeof(PackedI4<4>) == 8 * 69 && sizeof(PackedF8<4>) == 8 * 132, "");
static_assert(sizeof(PackedQ4_0) == 8 * 18 && sizeof(PackedQ4_1) == 8 * 20 && sizeof(PackedQ5_0) == 8 * 22, "");
static_assert(sizeof(PackedQ5_1) == 8 * 24 && sizeof(PackedQ8_0) == 8 * 34 && sizeof(PackedQ4_K) == 8 * 144, "");
static_assert(sizeof(PackedQ5_K) == 8 * 176 && sizeof(PackedQ6_K) == 8 * 210, "");

// How many sub-blocks of 32 weights share a scale in a type of our own.
static inline int shared_subs(int32_t type) {
    switch (type) {
    case kI4_64:
        return 2;
    case kI8_128:
    case kI4_128:
    case kF8_128:
        return 4;
    default:
        return 1;
    }
}

// Bit patterns of the largest |x| in a group of 16 activations: below the first, 127 / max would overflow and the
// group is zero; above the second it holds an infinity or a NaN and its scale is NaN.
constexpr uint32_t kSmallestMagnitudeBits = (127 - 119) << 23; // 2^-119
constexpr uint32_t kLargestMagnitudeBits = 0x7f7fffff;

// Tables and functions shared by every instruction set (matmul_common.cpp, compiled for the baseline).
bool common_integer_type(int32_t type);
size_t common_group_bytes(int32_t type, int32_t cols);
void common_pack_group(int32_t type, const uint8_t* source, size_t row_bytes, int rows, int32_t cols, uint8_t* group);
void common_unpack_row(const PackedMatrix& w, int32_t row, float* out);
// All 8 rows of a group of a float type as floats, for k in [begin, end) (whole blocks): out[k - begin][8].
void common_float_panel(const PackedMatrix& w, int group, int32_t begin, int32_t end, float* out);

// Types without fast kernels (generic_types.cpp). Block sizes in weights and bytes; 0 if the type is unknown or its
// codebook was not set.
int32_t generic_block_size(int32_t type);
int32_t generic_block_bytes(int32_t type);
// `blocks` consecutive blocks as floats, exactly as kernels/reference/dequantize.py computes them.
void generic_dequantize(int32_t type, const uint8_t* source, int32_t blocks, float* out);

// IEEE half precision to single, exact (subnormals, infinities and NaN included).
static inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t magnitude = half & 0x7fff;
    uint32_t bits;
    if (magnitude >= 0x7c00) {
        bits = 0x7f800000 | (magnitude & 0x3ff) << 13;
    } else if (magnitude >= 0x400) {
        bits = (magnitude << 13) + (112u << 23);
    } else {
        const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
        std::memcpy(&bits, &subnormal, 4);
    }
    bits |= sign;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

// 1/256 of a float of 1 sign, 4 exponent and 3 mantissa bits: the half with the same bits.
static inline float small_float(uint8_t bits) {
    return half_to_float(static_cast<uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7));
}

// Where the bits of a group of F8 begin, and whether that of 32 k is set.
static inline size_t normal_bits_at(int32_t type, int32_t cols) {
    const int subs = shared_subs(type);
    return static_cast<size_t>(cols) * 8 + static_cast<size_t>(cols / (32 * subs)) * sizeof(PackedF8<1>::d);
}
static inline bool all_normal(const uint8_t* bits, int32_t sub) {
    return bits[sub / 8] >> (sub % 8) & 1;
}

// The 6-bit scale and min of sub-block `sub` of row `row`, from the packed scale words of a Q4_K or Q5_K block.
static inline void k_scale_min(const uint8_t (*scales)[32], int row, int sub, int& scale, int& min) {
    const int byte = 4 * row + sub % 4;
    const uint8_t d = scales[0][byte], m = scales[1][byte], both = scales[2][byte];
    scale = sub < 4 ? d & 63 : (both & 15) | (d >> 6) << 4;
    min = sub < 4 ? m & 63 : both >> 4 | (m >> 6) << 4;
}

} // namespace li
