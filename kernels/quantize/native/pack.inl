// How bits are put into bytes.
#pragma once

#include "lanes.inl"

namespace {

// Codes whose lowest `bits` bits are interleaved into `bytes` bytes: each run of `width` bytes holds in its lowest
// fields the first `width` codes, in the next fields the next, and so on.
template <int bits>
LI_INLINE void pack_planes(const uint8_t* codes, int bytes, int width, uint8_t* out) {
    constexpr int fields = 8 / bits, mask = (1 << bits) - 1;
    for (int start = 0; start < bytes; start += width)
        for (int i = 0; i < width; i++) {
            int packed = 0;
            for (int field = 0; field < fields; field++)
                packed |= (codes[start * fields + field * width + i] & mask) << field * bits;
            out[start + i] = uint8_t(packed);
        }
}

LI_INLINE void pack_half_float(int32_t half, uint8_t* out) {
    out[0] = uint8_t(half);
    out[1] = uint8_t(half >> 8);
}

} // namespace
