// The portable matrix products: the contract of matmul.h written out, for every CPU and every type.
#include <algorithm>
#include <cmath>

#include "matmul.h"
#include "matmul_layout.h"

namespace li {
namespace {

constexpr int kTile = 16; // tokens that share one decoded sub-block

// 32 columns of 8 rows with everything that belongs to them.
struct SubBlock {
    int16_t weights[8][32]; // as stored: unsigned, but signed for Q8_0 and I8
    int scale[2][8];        // integer scale of each half (K-quants)
    int min[8];
};

template <class Packed>
void read_nibbles(const Packed& from, SubBlock& out) {
    for (int c = 0; c < 4; c++)
        for (int row = 0; row < 8; row++)
            for (int i = 0; i < 4; i++) {
                const uint8_t byte = from.low[c][4 * row + i];
                out.weights[row][4 * c + i] = byte & 15;
                out.weights[row][16 + 4 * c + i] = byte >> 4;
            }
}

template <class Packed>
void read_five_bits(const Packed& from, SubBlock& out) {
    read_nibbles(from, out);
    for (int row = 0; row < 8; row++)
        for (int k = 0; k < 32; k++)
            out.weights[row][k] = static_cast<int16_t>(
                out.weights[row][k] | (from.high[4 * row + k % 4] >> (k / 4) & 1) << 4);
}

template <class Block>
void read_k_scales(const Block& from, int sub, SubBlock& out) {
    for (int row = 0; row < 8; row++) {
        k_scale_min(from.scales, row, sub, out.scale[0][row], out.min[row]);
        out.scale[1][row] = out.scale[0][row];
    }
}

void read(const PackedQ4_0& from, int, SubBlock& out) {
    read_nibbles(from, out);
}

void read(const PackedQ4_1& from, int, SubBlock& out) {
    read_nibbles(from, out);
}

void read(const PackedQ5_0& from, int, SubBlock& out) {
    read_five_bits(from, out);
}

void read(const PackedQ5_1& from, int, SubBlock& out) {
    read_five_bits(from, out);
}

void read_signed(const int8_t (&from)[8][32], SubBlock& out) {
    for (int c = 0; c < 8; c++)
        for (int row = 0; row < 8; row++)
            for (int i = 0; i < 4; i++)
                out.weights[row][4 * c + i] = from[c][4 * row + i];
}

void read(const PackedQ8_0& from, int, SubBlock& out) {
    read_signed(from.q, out);
}

template <int Subs>
void read(const PackedI8<Subs>& from, int sub, SubBlock& out) {
    read_signed(from.sub[sub].q, out);
}

template <int Subs>
void read(const PackedI4<Subs>& from, int sub, SubBlock& out) {
    read_nibbles(from.sub[sub], out);
}

void read(const PackedQ4_K& from, int sub, SubBlock& out) {
    read_nibbles(from.sub[sub], out);
    read_k_scales(from, sub, out);
}

void read(const PackedQ5_K& from, int sub, SubBlock& out) {
    read_five_bits(from.sub[sub], out);
    read_k_scales(from, sub, out);
}

void read(const PackedQ6_K& from, int sub, SubBlock& out) {
    read_nibbles(from.sub[sub], out);
    for (int row = 0; row < 8; row++) {
        for (int k = 0; k < 32; k++) {
            const uint8_t high = from.sub[sub].high[k / 16][4 * row + k % 4];
            out.weights[row][k] = static_cast<int16_t>(out.weights[row][k] | (high >> (2 * (k % 16 / 4)) & 3) << 4);
        }
        for (int half = 0; half < 2; half++)
            out.scale[half][row] = from.scales[2 * sub + half][row];
    }
}

float scale_of(uint16_t half) {
    return half_to_float(half);
}

float scale_of(float d) {
    return d;
}

// The factor of s32 in types with one scale per block: the stored min, or the zero point times -d.
template <int Subs>
float block_min(const PackedI8<Subs>& b, int row) {
    return -b.d[row] * static_cast<float>(b.zero[row]);
}

template <int Subs>
float block_min(const PackedI4<Subs>& b, int row) {
    return -b.d[row] * static_cast<float>(b.zero[row]);
}

float block_min(const PackedQ4_0& b, int row) {
    return -8.0f * half_to_float(b.d[row]);
}

float block_min(const PackedQ4_1& b, int row) {
    return half_to_float(b.m[row]);
}

float block_min(const PackedQ5_0& b, int row) {
    return -16.0f * half_to_float(b.d[row]);
}

float block_min(const PackedQ5_1& b, int row) {
    return half_to_float(b.m[row]);
}

int dot16(const int16_t* weights, const int8_t* q) {
    int sum = 0;
    for (int k = 0; k < 16; k++)
        sum += weights[k] * q[k];
    return sum;
}

void store_group(const PackedMatrix& w, int group, int token, const float acc[8], float* y, size_t y_stride,
                 const float* bias) {
    const int32_t first = group * kGroupRows;
    for (int32_t row = 0; row < kGroupRows && first + row < w.rows; row++)
        y[token * y_stride + first + row] = bias ? acc[row] + bias[first + row] : acc[row];
}

// Types with one scale (and perhaps a min) per block of `Subs` times 32 weights.
template <class Block, bool HasMin, int Subs = 1>
void multiply_simple(const PackedMatrix& w, const Activations& a, int first, int tokens, int group, float acc[][8]) {
    const Block* blocks = reinterpret_cast<const Block*>(w.data + group * w.group_bytes);
    for (int32_t b = 0; b < w.cols / 32; b++) {
        SubBlock sub;
        const Block& block = blocks[b / Subs];
        read(block, b % Subs, sub);
        for (int t = 0; t < tokens; t++) {
            const int8_t* q = a.q + (first + t) * a.q_stride + 32 * b;
            const float* scale = a.scale + (first + t) * a.scale_stride + 2 * b;
            for (int row = 0; row < 8; row++) {
                float sum = static_cast<float>(dot16(sub.weights[row], q)) * scale[0];
                sum = std::fmaf(static_cast<float>(dot16(sub.weights[row] + 16, q + 16)), scale[1], sum);
                acc[t][row] = std::fmaf(scale_of(block.d[row]), sum, acc[t][row]);
                if constexpr (HasMin)
                    acc[t][row] = std::fmaf(block_min(block, row), a.sum32[(first + t) * a.sum32_stride + b],
                                            acc[t][row]);
            }
        }
    }
}

// Q4_K and Q5_K.
template <class Block>
void multiply_k(const PackedMatrix& w, const Activations& a, int first, int tokens, int group, float acc[][8]) {
    const Block* blocks = reinterpret_cast<const Block*>(w.data + group * w.group_bytes);
    for (int32_t b = 0; b < w.cols / 256; b++) {
        float total[kTile][8] = {}, mins[kTile][8] = {};
        for (int j = 0; j < 8; j++) {
            SubBlock sub;
            read(blocks[b], j, sub);
            for (int t = 0; t < tokens; t++) {
                const int8_t* q = a.q + (first + t) * a.q_stride + 256 * b + 32 * j;
                const float* scale = a.scale + (first + t) * a.scale_stride + 16 * b + 2 * j;
                const float sum32 = a.sum32[(first + t) * a.sum32_stride + 8 * b + j];
                for (int row = 0; row < 8; row++) {
                    for (int half = 0; half < 2; half++) {
                        const int dot = dot16(sub.weights[row] + 16 * half, q + 16 * half) * sub.scale[half][row];
                        total[t][row] = std::fmaf(static_cast<float>(dot), scale[half], total[t][row]);
                    }
                    mins[t][row] = std::fmaf(static_cast<float>(sub.min[row]), sum32, mins[t][row]);
                }
            }
        }
        for (int t = 0; t < tokens; t++)
            for (int row = 0; row < 8; row++) {
                acc[t][row] = std::fmaf(half_to_float(blocks[b].d[row]), total[t][row], acc[t][row]);
                acc[t][row] = std::fmaf(-half_to_float(blocks[b].m[row]), mins[t][row], acc[t][row]);
            }
    }
}

void multiply_q6_k(const PackedMatrix& w, const Activations& a, int first, int tokens, int group, float acc[][8]) {
    const PackedQ6_K* blocks = reinterpret_cast<const PackedQ6_K*>(w.data + group * w.group_bytes);
    for (int32_t b = 0; b < w.cols / 256; b++) {
        float total[kTile][8] = {}, offset[kTile][8] = {};
        for (int j = 0; j < 8; j++) {
            SubBlock sub;
            read(blocks[b], j, sub);
            for (int t = 0; t < tokens; t++) {
                const int8_t* q = a.q + (first + t) * a.q_stride + 256 * b + 32 * j;
                const size_t at = (first + t) * a.scale_stride + 16 * b + 2 * j;
                for (int row = 0; row < 8; row++)
                    for (int half = 0; half < 2; half++) {
                        const int scale = sub.scale[half][row];
                        const int dot = dot16(sub.weights[row] + 16 * half, q + 16 * half) * scale;
                        total[t][row] = std::fmaf(static_cast<float>(dot), a.scale[at + half], total[t][row]);
                        offset[t][row] = std::fmaf(static_cast<float>(scale), a.sum16[at + half], offset[t][row]);
                    }
            }
        }
        for (int t = 0; t < tokens; t++)
            for (int row = 0; row < 8; row++) {
                const float d = half_to_float(blocks[b].d[row]);
                acc[t][row] = std::fmaf(d, total[t][row], acc[t][row]);
                acc[t][row] = std::fmaf(-32.0f * d, offset[t][row], acc[t][row]);
            }
    }
}

void multiply_float(const PackedMatrix& w, const Activations& a, int first, int tokens, int group, float acc[][8]) {
    constexpr int32_t kPanel = 256; // a multiple of every block size
    float panel[kPanel * 8];
    for (int32_t begin = 0; begin < w.cols; begin += kPanel) {
        const int32_t end = std::min(w.cols, begin + kPanel);
        common_float_panel(w, group, begin, end, panel);
        for (int t = 0; t < tokens; t++) {
            const float* x = a.x + (first + t) * a.x_stride;
            for (int32_t k = begin; k < end; k++)
                for (int row = 0; row < 8; row++)
                    acc[t][row] = std::fmaf(panel[8 * (k - begin) + row], x[k], acc[t][row]);
        }
    }
}

template <int Subs>
void multiply_small_floats(const PackedMatrix& w, const Activations& a, int first, int tokens, int group,
                           float acc[][8]) {
    const auto* blocks = reinterpret_cast<const PackedF8<Subs>*>(w.data + group * w.group_bytes);
    for (int32_t b = 0; b < w.cols / 32; b++) {
        const auto& block = blocks[b / Subs];
        float weights[32][8];
        for (int k = 0; k < 32; k++)
            for (int row = 0; row < 8; row++)
                weights[k][row] = small_float(block.sub[b % Subs].q[k / 4][4 * row + k % 4]);
        for (int t = 0; t < tokens; t++) {
            const float* x = a.x + (first + t) * a.x_stride + 32 * b;
            for (int row = 0; row < 8; row++) {
                float sum = 0;
                for (int k = 0; k < 32; k++)
                    sum = std::fmaf(weights[k][row], x[k], sum);
                acc[t][row] = std::fmaf(256.0f * block.d[row], sum, acc[t][row]);
            }
        }
    }
}

using MultiplyTile = void (*)(const PackedMatrix&, const Activations&, int first, int tokens, int group,
                              float acc[][8]);

MultiplyTile tile_function(int32_t type) {
    switch (type) {
    case kQ4_0:
        return multiply_simple<PackedQ4_0, true>;
    case kQ4_1:
        return multiply_simple<PackedQ4_1, true>;
    case kQ5_0:
        return multiply_simple<PackedQ5_0, true>;
    case kQ5_1:
        return multiply_simple<PackedQ5_1, true>;
    case kQ8_0:
        return multiply_simple<PackedQ8_0, false>;
    case kQ4_K:
        return multiply_k<PackedQ4_K>;
    case kQ5_K:
        return multiply_k<PackedQ5_K>;
    case kQ6_K:
        return multiply_q6_k;
    case kI8_32:
        return multiply_simple<PackedI8<1>, true>;
    case kI8_128:
        return multiply_simple<PackedI8<4>, true, 4>;
    case kI4_32:
        return multiply_simple<PackedI4<1>, true>;
    case kI4_64:
        return multiply_simple<PackedI4<2>, true, 2>;
    case kI4_128:
        return multiply_simple<PackedI4<4>, true, 4>;
    case kF8_32:
        return multiply_small_floats<1>;
    case kF8_128:
        return multiply_small_floats<4>;
    default:
        return multiply_float;
    }
}

void multiply(const PackedMatrix& w, const Activations& a, int tokens, int group_begin, int group_end, float* y,
              size_t y_stride, const float* bias) {
    const MultiplyTile tile = tile_function(w.type);
    for (int first = 0; first < tokens; first += kTile) {
        const int count = std::min(kTile, tokens - first);
        for (int group = group_begin; group < group_end; group++) {
            float acc[kTile][8] = {};
            tile(w, a, first, count, group, acc);
            for (int t = 0; t < count; t++)
                store_group(w, group, first + t, acc[t], y, y_stride, bias);
        }
    }
}

void quantize_row(const float* x, int32_t cols, int8_t* q, float* scale, float* sum16, float* sum32) {
    for (int32_t g = 0; g < cols / 16; g++) {
        uint32_t largest = 0; // bit patterns of |x|, which order as the numbers do and put NaN last
        for (int k = 0; k < 16; k++) {
            uint32_t bits;
            std::memcpy(&bits, x + 16 * g + k, 4);
            largest = std::max(largest, bits & 0x7fffffff);
        }
        int sum = 0;
        if (largest < kSmallestMagnitudeBits || largest > kLargestMagnitudeBits) {
            std::memset(q + 16 * g, 0, 16);
            scale[g] = largest > kLargestMagnitudeBits ? std::nanf("") : 0.0f;
        } else {
            float magnitude;
            std::memcpy(&magnitude, &largest, 4);
            const float inverse = 127.0f / magnitude;
            scale[g] = magnitude / 127.0f;
            for (int k = 0; k < 16; k++) {
                const int value = static_cast<int>(std::nearbyint(x[16 * g + k] * inverse));
                q[16 * g + k] = static_cast<int8_t>(value);
                sum += value;
            }
        }
        sum16[g] = scale[g] * static_cast<float>(sum);
    }
    for (int32_t b = 0; b < cols / 32; b++)
        sum32[b] = sum16[2 * b] + sum16[2 * b + 1];
}

} // namespace

const MatmulKernels* matmul_portable() {
    static const MatmulKernels kernels = {common_integer_type, common_group_bytes, common_pack_group,
                                          common_unpack_row,   quantize_row,       multiply};
    return &kernels;
}

} // namespace li
