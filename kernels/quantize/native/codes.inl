// Forms that other programs keep as arrays of codes and of scales: int4 in groups of columns, and int8 and FP8 with scales
// that are given. Here they are blocks like those of GGUF files; quantizer.py takes them apart.
#pragma once

#include "fit.inl"

namespace {

// Only binary16 has a narrow range.
LI_INLINE V round_scale(V scale, const Source& source) {
    switch (source.options->scale_type) {
    case kBinary16: return round_half(scale, source);
    case kBfloat16: return round_bfloat(scale * source.down) * source.up;
    default: return scale;
    }
}

// w = scale * (code - zero): a float32 scale, the zero as a signed byte, and the codes, signed bytes from -8 to 7.
template <int columns>
struct Int4 {
    using Levels = Integers<0, 15>;
    static constexpr int kColumns = columns, kPart = columns, kBytes = 5 + columns;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) {
        V scale{}, zero = all(8.0f);
        if (source.options->symmetric)
            scale = fit_scale<Integers<-8, 7>>(source.x, source.weight, columns, kAnchors, 2);
        else
            fit_zero(source, scale, zero);
        block.too_large = source.options->scale_type == kBinary16 ? magnitude(scale * source.down) > kLargestHalf : I{};
        block.scale[0] = round_scale(scale, source) * source.down;
        block.offset[0] = -(block.scale[0] * zero);
        block.offset_code[0] = to_int(zero) - 8;
    }

    static void pack(const Block& block, int lane, const uint8_t* codes, uint8_t* out) {
        const float scale = block.scale[0][lane];
        std::memcpy(out, &scale, sizeof scale);
        out[4] = uint8_t(block.offset_code[0][lane]);
        for (int i = 0; i < columns; i++) out[5 + i] = uint8_t(codes[i] - 8);
    }

private:
    static constexpr float kAnchors[] = {-8.0f, -7.5f, -7.0f, -6.5f, -6.0f, -5.5f, -5.0f, 7.4f,
                                         7.0f,  6.5f,  6.0f,  5.5f,  5.0f,  -4.5f, 4.5f};
    static constexpr float kStarts[][2] = {{0, 0},         {0.04f, 0},      {0, 0.04f},      {0.04f, 0.04f}, {0.08f, 0.04f},
                                           {0.04f, 0.08f}, {0.08f, 0.08f}, {0.12f, 0.12f}, {0.08f, 0},     {0, 0.08f}};

    // Zeros around the best offset, each with the scale that is best for the levels it gives.
    static LI_INLINE void fit_zero(const Source& source, V& best_scale, V& best_zero) {
        const Line line = fit_line<15, true>(source.x, source.weight, columns, kStarts, 2);
        const V middle = round_even(clamp(-line.offset * inverse(line.scale), 0, 15));
        V best_error = all(3.0e38f);
        for (int step = -1; step <= 1; step++) {
            const V zero = clamp(middle + float(step), 0, 15);
            V scale = line.scale;
            for (int round = 0; round < 3; round++) {
                scale = round_scale(scale, source);
                const V inverse_scale = inverse(scale);
                V error{}, xq{}, qq{};
                for (int i = 0; i < columns; i++) {
                    const V q = clamp(round_even(clamp(source.x[i] * inverse_scale, -32, 32)) + zero, 0, 15) - zero;
                    const V rest = source.x[i] - scale * q, wq = source.weight[i] * q;
                    error += source.weight[i] * (rest * rest);
                    xq += wq * source.x[i];
                    qq += wq * q;
                }
                const I better = error < best_error;
                best_error = select(better, error, best_error);
                best_scale = select(better, scale, best_scale);
                best_zero = select(better, zero, best_zero);
                scale = xq * inverse(qq);
            }
        }
    }
};

// w = scale * level with a scale that the caller gives; a block holds codes only.
template <class LevelsOf, int code_offset>
struct GivenScale {
    using Levels = LevelsOf;
    static constexpr int kColumns = 32, kPart = 32, kBytes = 32;
    static constexpr bool kFavourLarge = false;

    static void fit(const Source& source, Block& block) {
        block.scale[0] = source.given;
        block.offset[0] = V{};
        block.too_large = I{};
    }

    static void pack(const Block&, int, const uint8_t* codes, uint8_t* out) {
        for (int i = 0; i < 32; i++) out[i] = uint8_t(codes[i] + code_offset);
    }
};

// errors[i] = Σ weight (x / scales[i] - level)² of a row of n columns, for kCandidates scales, each in a lane.
template <class Levels>
void code_errors(const float* row, int64_t n, const float* importance, const float* scales, float* errors) {
    for (int first = 0; first < kCandidates; first += kLanes) {
        V inverse_scale, sum{};
        std::memcpy(&inverse_scale, scales + first, sizeof inverse_scale);
        inverse_scale = inverse(inverse_scale);
        for (int64_t i = 0; i < n; i++) {
            const V t = row[i] * inverse_scale, rest = t - Levels::nearest(t);
            sum += (importance ? importance[i] : 1.0f) * (rest * rest);
        }
        std::memcpy(errors + first, &sum, sizeof sum);
    }
}

} // namespace
