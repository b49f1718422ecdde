// Types whose blocks of 256 weights have quantized scales: every scale is d times an integer (and every offset -d_offset
// times one). They are chosen by their true error, with the integers already in place: for given d and d_offset each
// part tries integers around its own best ones; for the levels that come out, the best d and d_offset are in closed
// form; and so on in turn.
#pragma once

#include "fit.inl"
#include "pack.inl"

namespace {

// The scales of a block: w = (d * scale_code) * level.
template <class Levels, int part_columns, int lowest_code, int highest_code>
struct ScaledParts {
    static constexpr int kParts = 256 / part_columns;

    // Chooses the parts' codes for a given d; returns the error of the block and what the best d for these levels is.
    static LI_INLINE V choose(const Source& source, V d, const V* ideal, int reach, I* codes, V& next_d) {
        const V inverse_d = inverse(d);
        V total{}, xa{}, aa{};
        for (int part = 0; part < kParts; part++) {
            const V* x = source.x + part * part_columns;
            const V* weight = source.weight + part * part_columns;
            const V middle = round_even(clamp(ideal[part] * inverse_d, lowest_code, highest_code));
            V best{}, best_error = all(3.0e38f);
            for (int step = -reach; step <= reach; step++) {
                const V code = clamp(middle + float(step), lowest_code, highest_code);
                const V error = scale_error<Levels>(x, weight, part_columns, d * code);
                const I better = error < best_error;
                best_error = select(better, error, best_error);
                best = select(better, code, best);
            }
            total += best_error;
            codes[part] = to_int(best);
            const ScaleSums sums = scale_sums<Levels>(x, weight, part_columns, inverse(d * best));
            xa += best * sums.xq;
            aa += best * (best * sums.qq);
        }
        next_d = xa * inverse(aa);
        return total;
    }

    static LI_INLINE void fit(const Source& source, const V* ideal, int rounds, int reach, Block& block) {
        V largest = ideal[0];
        for (int part = 1; part < kParts; part++)
            largest = select(magnitude(ideal[part]) > magnitude(largest), ideal[part], largest);
        V start = largest * (1.0f / lowest_code), best_error = all(3.0e38f), best_d{};
        block.too_large = magnitude(start * source.down) > kLargestHalf;
        for (int round = 0; round < rounds; round++) {
            const V d = round_half(start, source);
            I codes[kParts];
            const V error = choose(source, d, ideal, reach, codes, start);
            const I better = error < best_error;
            best_error = select(better, error, best_error);
            best_d = select(better, d, best_d);
            for (int part = 0; part < kParts; part++)
                block.scale_code[part] = select_int(better, codes[part], block.scale_code[part]);
        }
        const V exact = best_d * source.down;
        block.d = half_bits(exact);
        for (int part = 0; part < kParts; part++) {
            block.scale[part] = exact * to_float(block.scale_code[part]);
            block.offset[part] = V{};
        }
    }
};

// The scales and offsets of a block: w = (d * scale_code) * level - d_offset * offset_code, all codes from 0 to
// highest_code, levels from 0 to `high`.
template <int high, int part_columns, int highest_code>
struct LinedParts {
    using Levels = Integers<0, high>;
    static constexpr int kParts = 256 / part_columns;

    struct Steps {
        V d, d_offset;
    };

    static LI_INLINE V choose(const Source& source, Steps steps, const Line* ideal, int scale_reach, int offset_reach,
                              I* scale_codes, I* offset_codes, Steps& next) {
        const V inverse_d = inverse(steps.d), inverse_d_offset = inverse(steps.d_offset);
        V total{}, aa{}, ab{}, bb{}, xa{}, xb{};
        for (int part = 0; part < kParts; part++) {
            const V* x = source.x + part * part_columns;
            const V* weight = source.weight + part * part_columns;
            const V middle = round_even(clamp(ideal[part].scale * inverse_d, 0, highest_code));
            const V offset_middle = round_even(clamp(-ideal[part].offset * inverse_d_offset, 0, highest_code));
            V best{}, best_offset{}, best_error = all(3.0e38f);
            for (int i = -scale_reach; i <= scale_reach; i++) {
                const V code = clamp(middle + float(i), 0, highest_code);
                for (int j = -offset_reach; j <= offset_reach; j++) {
                    const V offset_code = clamp(offset_middle + float(j), 0, highest_code);
                    const V error = offset_error<Levels>(x, weight, part_columns, steps.d * code, -(steps.d_offset * offset_code));
                    const I better = error < best_error;
                    best_error = select(better, error, best_error);
                    best = select(better, code, best);
                    best_offset = select(better, offset_code, best_offset);
                }
            }
            total += best_error;
            scale_codes[part] = to_int(best);
            offset_codes[part] = to_int(best_offset);
            const V scale = steps.d * best, offset = -(steps.d_offset * best_offset);
            const OffsetSums sums = offset_sums<high>(x, weight, part_columns, V{}, inverse(scale), offset);
            V sum_w{}, sum_x{};
            for (int i = 0; i < part_columns; i++) {
                sum_w += weight[i];
                sum_x += weight[i] * x[i];
            }
            aa += best * (best * sums.qq);
            ab += best * (best_offset * sums.q);
            bb += best_offset * (best_offset * sum_w);
            xa += best * sums.xq;
            xb += best_offset * sum_x;
        }
        // least squares of x against a = scale_code * level and -b = -offset_code
        const V determinant = aa * bb - ab * ab;
        const I solvable = determinant > 1e-5f * (aa * bb);
        const V inverse_determinant = inverse(determinant);
        next.d = select(solvable, (xa * bb - xb * ab) * inverse_determinant, xa * inverse(aa));
        next.d_offset = select(solvable, (xa * ab - xb * aa) * inverse_determinant, steps.d_offset);
        return total;
    }

    static LI_INLINE void fit(const Source& source, const Line* ideal, int rounds, int scale_reach, int offset_reach,
                              Block& block) {
        V largest{}, largest_offset{};
        for (int part = 0; part < kParts; part++) {
            largest = max(largest, ideal[part].scale);
            largest_offset = max(largest_offset, -ideal[part].offset);
        }
        Steps start{largest * (1.0f / highest_code), largest_offset * (1.0f / highest_code)}, best{};
        block.too_large = (start.d * source.down > kLargestHalf) | (start.d_offset * source.down > kLargestHalf);
        V best_error = all(3.0e38f);
        for (int round = 0; round < rounds; round++) {
            const Steps steps{round_half(start.d, source), round_half(start.d_offset, source)};
            I codes[kParts], offset_codes[kParts];
            const V error = choose(source, steps, ideal, scale_reach, offset_reach, codes, offset_codes, start);
            const I better = error < best_error;
            best_error = select(better, error, best_error);
            best.d = select(better, steps.d, best.d);
            best.d_offset = select(better, steps.d_offset, best.d_offset);
            for (int part = 0; part < kParts; part++) {
                block.scale_code[part] = select_int(better, codes[part], block.scale_code[part]);
                block.offset_code[part] = select_int(better, offset_codes[part], block.offset_code[part]);
            }
        }
        const V d = best.d * source.down, d_offset = best.d_offset * source.down;
        block.d = half_bits(d);
        block.d_offset = half_bits(d_offset);
        for (int part = 0; part < kParts; part++) {
            block.scale[part] = d * to_float(block.scale_code[part]);
            block.offset[part] = -(d_offset * to_float(block.offset_code[part]));
        }
    }
};

template <int high, int part_columns, int highest_code>
LI_INLINE void fit_lined(const Source& source, Block& block, int rounds, int scale_reach, int offset_reach) {
    constexpr int parts = 256 / part_columns;
    Line ideal[parts];
    for (int part = 0; part < parts; part++)
        ideal[part] = fit_line<high, true>(source.x + part * part_columns, source.weight + part * part_columns,
                                           part_columns, kStarts, 2);
    LinedParts<high, part_columns, highest_code>::fit(source, ideal, rounds, scale_reach, offset_reach, block);
}

struct Q2_K {
    using Levels = Integers<0, 3>;
    static constexpr int kColumns = 256, kPart = 16, kBytes = 84;
    static constexpr bool kFavourLarge = true;

    static void fit(const Source& source, Block& block) { fit_lined<3, 16, 15>(source, block, 3, 2, 2); }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        for (int part = 0; part < 16; part++)
            out[part] = uint8_t(block.scale_code[part][lane] | block.offset_code[part][lane] << 4);
        pack_planes<2>(codes, 64, 32, out + 16);
        pack_half_float(block.d[lane], out + 80);
        pack_half_float(block.d_offset[lane], out + 82);
    }
};

// The 12 bytes of scales and offsets of Q4_K and Q5_K: six bits each of parts 0 to 3 in bytes 0 to 7, the low four of
// parts 4 to 7 in bytes 8 to 11, their upper two in the spare bits of bytes 0 to 7.
LI_INLINE void pack_six_bits(const Block& block, int lane, uint8_t* out) {
    for (int i = 0; i < 4; i++) {
        const int scale = block.scale_code[4 + i][lane], offset = block.offset_code[4 + i][lane];
        out[i] = uint8_t(block.scale_code[i][lane] | (scale >> 4) << 6);
        out[4 + i] = uint8_t(block.offset_code[i][lane] | (offset >> 4) << 6);
        out[8 + i] = uint8_t((scale & 15) | (offset & 15) << 4);
    }
}

struct Q4_K {
    using Levels = Integers<0, 15>;
    static constexpr int kColumns = 256, kPart = 32, kBytes = 144;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) { fit_lined<15, 32, 63>(source, block, 2, 2, 3); }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        pack_half_float(block.d[lane], out);
        pack_half_float(block.d_offset[lane], out + 2);
        pack_six_bits(block, lane, out + 4);
        pack_planes<4>(codes, 128, 32, out + 16);
    }
};

struct Q5_K {
    using Levels = Integers<0, 31>;
    static constexpr int kColumns = 256, kPart = 32, kBytes = 176;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) { fit_lined<31, 32, 63>(source, block, 2, 2, 3); }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        pack_half_float(block.d[lane], out);
        pack_half_float(block.d_offset[lane], out + 2);
        pack_six_bits(block, lane, out + 4);
        uint8_t high[256];
        for (int i = 0; i < 256; i++) high[i] = codes[i] >> 4;
        pack_planes<1>(high, 32, 32, out + 16);
        pack_planes<4>(codes, 128, 32, out + 48);
    }
};

struct Q3_K {
    using Levels = Integers<-4, 3>;
    static constexpr int kColumns = 256, kPart = 16, kBytes = 110;
    static constexpr bool kFavourLarge = true;

    static void fit(const Source& source, Block& block) {
        static constexpr float kAnchors[] = {-4.8f, -4.6f, -4.4f, -4.2f, -4.0f, -3.8f, -3.6f, -3.4f, -3.2f, -3.0f, -2.8f, -2.6f, 2.4f, 2.6f, 2.8f, 3.0f, 3.2f, 3.4f, 3.6f};
        V ideal[16];
        for (int part = 0; part < 16; part++)
            ideal[part] = fit_scale<Levels>(source.x + 16 * part, source.weight + 16 * part, 16, kAnchors, 2);
        ScaledParts<Levels, 16, -32, 31>::fit(source, ideal, 4, 3, block);
    }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        uint8_t high[256];
        for (int i = 0; i < 256; i++) high[i] = codes[i] >> 2;
        pack_planes<1>(high, 32, 32, out);
        pack_planes<2>(codes, 64, 32, out + 32);
        uint8_t scales[16], upper[16];
        for (int part = 0; part < 16; part++) {
            scales[part] = uint8_t(block.scale_code[part][lane] + 32);
            upper[part] = scales[part] >> 4;
        }
        pack_planes<4>(scales, 8, 8, out + 96);
        pack_planes<2>(upper, 4, 4, out + 104);
        pack_half_float(block.d[lane], out + 108);
    }
};

struct Q6_K {
    using Levels = Integers<-32, 31>;
    static constexpr int kColumns = 256, kPart = 16, kBytes = 210;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) {
        static constexpr float kAnchors[] = {-33.0f, -32.6f, -32.2f, -31.8f, -31.4f, -31.0f, -30.6f, -30.2f, -29.8f, -29.4f, -29.0f, -28.6f, -28.2f, 28.5f, 29.0f, 29.5f, 30.0f, 30.5f, 31.0f, 31.5f};
        V ideal[16];
        for (int part = 0; part < 16; part++)
            ideal[part] = fit_scale<Levels>(source.x + 16 * part, source.weight + 16 * part, 16, kAnchors, 1);
        ScaledParts<Levels, 16, -128, 127>::fit(source, ideal, 2, 3, block);
    }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        uint8_t high[256];
        for (int i = 0; i < 256; i++) high[i] = codes[i] >> 4;
        pack_planes<4>(codes, 128, 64, out);
        pack_planes<2>(high, 64, 32, out + 128);
        for (int part = 0; part < 16; part++) out[192 + part] = uint8_t(block.scale_code[part][lane]);
        pack_half_float(block.d[lane], out + 208);
    }
};

struct IQ4_XS {
    using Levels = Iq4Levels;
    static constexpr int kColumns = 256, kPart = 32, kBytes = 136;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) {
        static constexpr float kAnchors[] = {-135.0f, -130.0f, -125.0f, -120.0f, -115.0f, -110.0f, -105.0f, -100.0f, -95.0f, -90.0f, 80.0f, 85.0f, 90.0f, 95.0f, 100.0f, 105.0f, 110.0f, 115.0f, 120.0f};
        V ideal[8];
        for (int part = 0; part < 8; part++)
            ideal[part] = fit_scale<Levels>(source.x + 32 * part, source.weight + 32 * part, 32, kAnchors, 2);
        ScaledParts<Levels, 32, -32, 31>::fit(source, ideal, 2, 2, block);
    }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        pack_half_float(block.d[lane], out);
        int upper = 0;
        for (int part = 0; part < 8; part++) upper |= ((block.scale_code[part][lane] + 32) >> 4) << 2 * part;
        out[2] = uint8_t(upper);
        out[3] = uint8_t(upper >> 8);
        for (int i = 0; i < 4; i++)
            out[4 + i] = uint8_t(((block.scale_code[2 * i][lane] + 32) & 15) |
                                 ((block.scale_code[2 * i + 1][lane] + 32) & 15) << 4);
        for (int part = 0; part < 8; part++) pack_planes<4>(codes + 32 * part, 16, 16, out + 8 + 16 * part);
    }
};

} // namespace
