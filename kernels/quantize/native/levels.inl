// The numbers that codes stand for. Each kind has nearest(t), the level nearest to t (a tie goes to the even integer, in
// tables to the lower level), and code(level), the bits that are stored for it.
#pragma once

#include "lanes.inl"

namespace {

// All integers from `low` to `high`, stored as level - low.
template <int low, int high>
struct Integers {
    static constexpr float kLow = low, kHigh = high;
    static LI_INLINE V nearest(V t) { return round_even(clamp(t, low, high)); }
    static LI_INLINE I code(V level) { return to_int(level) - low; }
};

using Int8 = Integers<-127, 127>;

// Sixteen levels in ascending order, stored as their index.
struct Iq4Levels {
    static constexpr float kLow = -127, kHigh = 113;
    static constexpr float kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static LI_INLINE V nearest(V t) {
        V level = all(kLevels[0]);
        for (int i = 1; i < 16; i++)
            level = select(t > 0.5f * (kLevels[i - 1] + kLevels[i]), all(kLevels[i]), level);
        return level;
    }
    static LI_INLINE I code(V level) {
        I index{};
        for (int i = 1; i < 16; i++) index -= level >= kLevels[i];
        return index;
    }
};

// Twice the values of E2M1 (OCP Microscaling Formats 1.0), stored as index of the magnitude and a sign bit.
struct TwiceE2M1 {
    static constexpr float kLow = -12, kHigh = 12;
    static constexpr float kLevels[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    static LI_INLINE V nearest(V t) {
        const V positive = magnitude(t);
        V level{};
        for (int i = 1; i < 8; i++)
            level = select(positive > 0.5f * (kLevels[i - 1] + kLevels[i]), all(kLevels[i]), level);
        return select(t < 0.0f, -level, level);
    }
    static LI_INLINE I code(V level) {
        const V positive = magnitude(level);
        I index{};
        for (int i = 1; i < 8; i++) index -= positive >= kLevels[i];
        return select_int(level < 0.0f, index + 8, index);
    }
};

// FP8 E4M3 without infinities (OCP 8-bit Floating Point Specification), stored as its bits.
struct E4M3 {
    static constexpr float kLow = -448, kHigh = 448;
    static LI_INLINE V nearest(V t) {
        const V positive = min(magnitude(t), all(448.0f));
        const I raw = bits(positive);
        const V normal = from_bits((raw + 0x7ffff + ((raw >> 20) & 1)) & ~0xfffff);
        const V subnormal = (positive + 0x1p14f) - 0x1p14f; // 2^14 has the spacing of subnormal numbers
        return from_bits(bits(select(positive < 0x1p-6f, subnormal, normal)) | (bits(t) & int32_t(0x80000000u)));
    }
    static LI_INLINE I code(V level) {
        const V positive = magnitude(level);
        const I normal = (bits(positive) >> 20) - (120 << 3), subnormal = to_int(positive * 512.0f);
        return select_int(positive < 0x1p-6f, subnormal, normal) | ((bits(level) >> 24) & 0x80);
    }
};

} // namespace
