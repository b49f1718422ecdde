// Types whose blocks of 32 weights have one scale, or a scale and an offset.
#pragma once

#include "fit.inl"
#include "pack.inl"

namespace {

LI_INLINE void store_scale(const Source& source, V d, Block& block) {
    const V exact = d * source.down;
    block.d = half_bits(exact);
    block.scale[0] = exact;
    block.offset[0] = V{};
}

template <class Levels, int count>
LI_INLINE void fit_half_scale(const Source& source, const float (&anchors)[count], Block& block) {
    const V scale = fit_scale<Levels>(source.x, source.weight, 32, anchors, 2);
    block.too_large = magnitude(scale * source.down) > kLargestHalf;
    store_scale(source, round_half(scale, source), block);
}

template <int high, int count>
LI_INLINE void fit_half_line(const Source& source, const float (&starts)[count][2], Block& block) {
    const Line line = fit_line<high, false>(source.x, source.weight, 32, starts, 2);
    block.too_large = (line.scale * source.down > kLargestHalf) | (magnitude(line.offset * source.down) > kLargestHalf);
    store_scale(source, round_half(line.scale, source), block);
    block.offset[0] = round_half(line.offset, source) * source.down;
    block.d_offset = half_bits(block.offset[0]);
}

struct Q4_0 {
    using Levels = Integers<-8, 7>;
    static constexpr int kColumns = 32, kPart = 32, kBytes = 18;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) {
        static constexpr float kAnchors[] = {-9.0f, -8.8f, -8.6f, -8.4f, -8.2f, -8.0f, -7.8f, -7.6f, -7.4f, -7.2f, -7.0f, -6.8f, -6.6f, -6.4f, -6.2f, -6.0f, -5.8f, -5.6f, -5.4f, 5.1f, 5.4f, 5.7f, 6.0f, 6.3f, 6.6f, 6.9f, 7.2f, 7.5f};
        fit_half_scale<Levels>(source, kAnchors, block);
    }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        pack_half_float(block.d[lane], out);
        pack_planes<4>(codes, 16, 16, out + 2);
    }
};


struct Q4_1 {
    using Levels = Integers<0, 15>;
    static constexpr int kColumns = 32, kPart = 32, kBytes = 20;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) { fit_half_line<15>(source, kStarts, block); }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        pack_half_float(block.d[lane], out);
        pack_half_float(block.d_offset[lane], out + 2);
        pack_planes<4>(codes, 16, 16, out + 4);
    }
};

// The fifth bits, one after the other, and then the other four.
LI_INLINE void pack_five_bits(const uint8_t* codes, uint8_t* out) {
    for (int byte = 0; byte < 4; byte++) {
        int packed = 0;
        for (int i = 0; i < 8; i++) packed |= (codes[8 * byte + i] >> 4) << i;
        out[byte] = uint8_t(packed);
    }
    pack_planes<4>(codes, 16, 16, out + 4);
}

struct Q5_0 {
    using Levels = Integers<-16, 15>;
    static constexpr int kColumns = 32, kPart = 32, kBytes = 22;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) {
        static constexpr float kAnchors[] = {-17.0f, -16.8f, -16.6f, -16.4f, -16.2f, -16.0f, -15.8f, -15.6f, -15.4f, -15.2f, -15.0f, -14.8f, -14.6f, -14.4f, -14.2f, -14.0f, -13.8f, -13.6f, -13.4f, -13.2f, -13.0f, -12.8f, -12.6f, -12.4f, 12.5f, 12.8f, 13.1f, 13.4f, 13.7f, 14.0f, 14.3f, 14.6f, 14.9f, 15.2f, 15.5f};
        fit_half_scale<Levels>(source, kAnchors, block);
    }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        pack_half_float(block.d[lane], out);
        pack_five_bits(codes, out + 2);
    }
};

struct Q5_1 {
    using Levels = Integers<0, 31>;
    static constexpr int kColumns = 32, kPart = 32, kBytes = 24;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) { fit_half_line<31>(source, kStarts, block); }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        pack_half_float(block.d[lane], out);
        pack_half_float(block.d_offset[lane], out + 2);
        pack_five_bits(codes, out + 4);
    }
};

struct IQ4_NL {
    using Levels = Iq4Levels;
    static constexpr int kColumns = 32, kPart = 32, kBytes = 18;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) {
        static constexpr float kAnchors[] = {-135.0f, -132.0f, -129.0f, -126.0f, -123.0f, -120.0f, -117.0f, -114.0f, -111.0f, -108.0f, -105.0f, -102.0f, -99.0f, -96.0f, -93.0f, -90.0f, -87.0f, 80.0f, 84.0f, 88.0f, 92.0f, 96.0f, 100.0f, 104.0f, 108.0f, 112.0f, 116.0f, 120.0f};
        fit_half_scale<Levels>(source, kAnchors, block);
    }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        pack_half_float(block.d[lane], out);
        pack_planes<4>(codes, 16, 16, out + 2);
    }
};

struct Q8_0 {
    using Levels = Integers<-127, 127>;
    static constexpr int kColumns = 32, kPart = 32, kBytes = 34;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) {
        static constexpr float kAnchors[] = {127.0f, 127.4f, 126.5f, 126.0f, 125.5f, 125.0f, 124.0f, 123.0f, 122.0f, 121.0f};
        const V largest = magnitude(extreme(source.x, 32));
        V best{}, best_error = all(3.0e38f);
        for (float anchor : kAnchors) {
            const V d = round_half(largest * (1.0f / anchor), source);
            const V error = scale_error<Levels>(source.x, source.weight, 32, d);
            const I better = error < best_error;
            best_error = select(better, error, best_error);
            best = select(better, d, best);
        }
        block.too_large = largest * source.down * (1.0f / 127.0f) > kLargestHalf;
        store_scale(source, best, block);
    }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        pack_half_float(block.d[lane], out);
        for (int i = 0; i < 32; i++) out[2 + i] = uint8_t(codes[i] - 127);
    }
};

// The scale is a power of two: w = 2^(e - 128) * level.
struct MXFP4 {
    using Levels = TwiceE2M1;
    static constexpr int kColumns = 32, kPart = 32, kBytes = 17;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) {
        // In units of source.up the largest magnitude is in [1, 2), and the largest level is 12.
        V best = all(0.125f), best_error = all(3.0e38f);
        static constexpr float kScales[] = {0.25f, 0.125f, 0.0625f, 0.03125f};
        for (float scale : kScales) {
            const V error = scale_error<Levels>(source.x, source.weight, 32, all(scale));
            const I better = error < best_error;
            best_error = select(better, error, best_error);
            best = select(better, all(scale), best);
        }
        const I exponent = ((bits(source.down) >> 23) - 127) + ((bits(best) >> 23) - 127) + 128;
        block.d = select_int(exponent < 0, I{}, select_int(exponent > 254, all_int(254), exponent));
        block.too_large = source.down > 0x1p126f; // levels above such weights may be infinite
        block.scale[0] = power_of_two(block.d - 128);
        block.offset[0] = V{};
    }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        out[0] = uint8_t(block.d[lane]);
        pack_planes<4>(codes, 16, 16, out + 1);
    }
};

} // namespace
