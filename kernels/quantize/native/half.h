// Rounding of single numbers to the formats of 16 bits, halves to even.
#pragma once

#include <cstdint>
#include <cstring>

namespace li::quantize {

inline uint32_t float_bits(float x) {
    uint32_t raw;
    std::memcpy(&raw, &x, sizeof raw);
    return raw;
}

// Bits of the nearest binary16 number; 0x7c00 (infinity) and its sign if x is beyond the largest one.
inline uint16_t to_binary16(float x) {
    const uint32_t raw = float_bits(x), sign = raw >> 16 & 0x8000, positive = raw & 0x7fffffff;
    if (positive >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (positive >= 0x38800000) // a normal number
        return uint16_t(sign | (((positive + 0xfff + (positive >> 13 & 1)) >> 13) - (112 << 10)));
    float magnitude;
    std::memcpy(&magnitude, &positive, sizeof magnitude);
    return uint16_t(sign | (float_bits(magnitude + 0.5f) - 0x3f000000)); // 0.5 has the spacing of subnormal halves
}

// The upper half of the nearest number that has only an upper half; 0x7f80 (infinity) and its sign beyond the largest.
inline uint16_t to_bfloat16(float x) {
    const uint32_t raw = float_bits(x);
    return uint16_t((raw + 0x7fff + (raw >> 16 & 1)) >> 16);
}

inline float from_bits(uint32_t raw) {
    float x;
    std::memcpy(&x, &raw, sizeof x);
    return x;
}

inline float from_bfloat16(uint16_t raw) { return from_bits(uint32_t(raw) << 16); }

inline float from_binary16(uint16_t raw) {
    const uint32_t sign = uint32_t(raw & 0x8000) << 16, positive = raw & 0x7fff;
    if (positive >= 0x7c00) return from_bits(sign | 0x7f800000 | (positive & 0x3ff) << 13);
    if (positive >= 0x400) return from_bits(sign | ((positive << 13) + (112u << 23)));
    return from_bits(sign | float_bits(float(positive) * 0x1p-24f));
}

} // namespace li::quantize
