// What every instruction set shares: sizes, packing to the layout of matmul_layout.h, and reading rows back.
#include "matmul.h"
#include "matmul_layout.h"

namespace li {
namespace {

struct FastType {
    int32_t type, block_size, block_bytes;
    bool integer;
};
constexpr FastType kFastTypes[] = {
    {kQ4_0, 32, 18, true},    {kQ4_1, 32, 20, true},    {kQ5_0, 32, 22, true},   {kQ5_1, 32, 24, true},
    {kQ8_0, 32, 34, true},    {kQ4_K, 256, 144, true},  {kQ5_K, 256, 176, true}, {kQ6_K, 256, 210, true},
    {kF32, 1, 4, false},      {kF16, 1, 2, false},      {kBF16, 1, 2, false},
    {kI8_32, 32, 37, true},   {kI8_128, 128, 133, true},
    {kI4_32, 32, 21, true},   {kI4_64, 64, 37, true},   {kI4_128, 128, 69, true},
    {kF8_32, 32, 36, false},  {kF8_128, 128, 132, false},
};

const FastType* fast_type(int32_t type) {
    for (const FastType& row : kFastTypes)
        if (row.type == type)
            return &row;
    return nullptr;
}

inline uint32_t load_word(const uint8_t* p) {
    uint32_t word;
    std::memcpy(&word, p, 4);
    return word;
}

inline uint64_t load_long(const uint8_t* p) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    return word;
}

inline void store_word(uint8_t* p, uint32_t word) {
    std::memcpy(p, &word, 4);
}

inline void copy_half(uint16_t* to, const uint8_t* from) {
    std::memcpy(to, from, 2);
}

// Bit 4b + i of `word` to bit 8i + b: from GGUF's order of high bits to that of `high` in the packed layout.
// Two unshuffles (even bits to the low half, odd bits to the high half), each in four exchange steps.
inline uint32_t spread_high_bits(uint32_t word) {
    for (int round = 0; round < 2; round++) {
        uint32_t x = (word ^ (word >> 1)) & 0x22222222;
        word ^= x ^ (x << 1);
        x = (word ^ (word >> 2)) & 0x0c0c0c0c;
        word ^= x ^ (x << 2);
        x = (word ^ (word >> 4)) & 0x00f000f0;
        word ^= x ^ (x << 4);
        x = (word ^ (word >> 8)) & 0x0000ff00;
        word ^= x ^ (x << 8);
    }
    return word;
}

// 32 bytes of GGUF nibbles (low: 32 weights, high: another 32) to two packed sub-blocks of 32 weights.
inline void split_nibbles(const uint8_t* source, int row, uint8_t (*even)[32], uint8_t (*odd)[32]) {
    for (int c = 0; c < 4; c++) {
        const uint32_t a = load_word(source + 4 * c), b = load_word(source + 16 + 4 * c);
        store_word(&even[c][4 * row], (a & 0x0f0f0f0f) | (b & 0x0f0f0f0f) << 4);
        store_word(&odd[c][4 * row], (a >> 4 & 0x0f0f0f0f) | (b & 0xf0f0f0f0));
    }
}

// Bit `s` of each of 32 bytes, as one word (bit k from byte k).
inline uint32_t gather_bit(const uint64_t words[4], int s) {
    uint32_t out = 0;
    for (int w = 0; w < 4; w++) // the product moves bit 8k of the masked word to bit 56 + k
        out |= static_cast<uint32_t>(((words[w] >> s) & 0x0101010101010101) * 0x0102040810204080 >> 56) << (8 * w);
    return out;
}

template <class Block>
void pack_nibble_row(const uint8_t* s, int row, Block& out) {
    for (int c = 0; c < 4; c++)
        store_word(&out.low[c][4 * row], load_word(s + 4 * c));
}

void pack_row(const uint8_t* s, int row, PackedQ4_0& out) {
    copy_half(&out.d[row], s);
    pack_nibble_row(s + 2, row, out);
}

void pack_row(const uint8_t* s, int row, PackedQ4_1& out) {
    copy_half(&out.d[row], s);
    copy_half(&out.m[row], s + 2);
    pack_nibble_row(s + 4, row, out);
}

void pack_row(const uint8_t* s, int row, PackedQ5_0& out) {
    copy_half(&out.d[row], s);
    store_word(&out.high[4 * row], spread_high_bits(load_word(s + 2)));
    pack_nibble_row(s + 6, row, out);
}

void pack_row(const uint8_t* s, int row, PackedQ5_1& out) {
    copy_half(&out.d[row], s);
    copy_half(&out.m[row], s + 2);
    store_word(&out.high[4 * row], spread_high_bits(load_word(s + 4)));
    pack_nibble_row(s + 8, row, out);
}

void pack_row(const uint8_t* s, int row, PackedQ8_0& out) {
    copy_half(&out.d[row], s);
    for (int c = 0; c < 8; c++)
        std::memcpy(&out.q[c][4 * row], s + 2 + 4 * c, 4);
}

// The 4 bytes of the scale and that of the zero point.
template <class Block>
void pack_scale_and_zero(const uint8_t* s, int row, Block& out) {
    std::memcpy(&out.d[row], s, 4);
    out.zero[row] = static_cast<int8_t>(s[4]);
}

template <int Subs>
void pack_row(const uint8_t* s, int row, PackedI8<Subs>& out) {
    pack_scale_and_zero(s, row, out);
    s += 5;
    for (auto& sub : out.sub)
        for (int c = 0; c < 8; c++, s += 4)
            std::memcpy(&sub.q[c][4 * row], s, 4);
}

// 4 nibbles that follow one another, each to a byte of its own.
inline uint32_t spread_nibbles(const uint8_t* p) {
    uint32_t x = p[0] | p[1] << 16;
    return (x | x << 4) & 0x0f0f0f0f;
}

template <int Subs>
void pack_row(const uint8_t* s, int row, PackedI4<Subs>& out) {
    pack_scale_and_zero(s, row, out);
    s += 5;
    for (auto& sub : out.sub) {
        for (int c = 0; c < 4; c++)
            store_word(&sub.low[c][4 * row], spread_nibbles(s + 2 * c) | spread_nibbles(s + 8 + 2 * c) << 4);
        s += 16;
    }
}

template <class Block>
void pack_k_scales(const uint8_t* s, int row, Block& out) {
    copy_half(&out.d[row], s);
    copy_half(&out.m[row], s + 2);
    for (int w = 0; w < 3; w++)
        store_word(&out.scales[w][4 * row], load_word(s + 4 + 4 * w));
}

void pack_row(const uint8_t* s, int row, PackedQ4_K& out) {
    pack_k_scales(s, row, out);
    for (int pair = 0; pair < 4; pair++)
        split_nibbles(s + 16 + 32 * pair, row, out.sub[2 * pair].low, out.sub[2 * pair + 1].low);
}

void pack_row(const uint8_t* s, int row, PackedQ5_K& out) {
    pack_k_scales(s, row, out);
    const uint64_t high[4] = {load_long(s + 16), load_long(s + 24), load_long(s + 32), load_long(s + 40)};
    for (int sub = 0; sub < 8; sub++)
        store_word(&out.sub[sub].high[4 * row], spread_high_bits(gather_bit(high, sub)));
    for (int pair = 0; pair < 4; pair++)
        split_nibbles(s + 48 + 32 * pair, row, out.sub[2 * pair].low, out.sub[2 * pair + 1].low);
}

void pack_row(const uint8_t* s, int row, PackedQ6_K& out) {
    copy_half(&out.d[row], s + 208);
    for (int g = 0; g < 16; g++)
        out.scales[g][row] = static_cast<int8_t>(s[192 + g]);
    for (int half = 0; half < 2; half++) { // 128 weights: sub-blocks 0, 2 share the bytes of one 32, 1, 3 the others
        auto* sub = &out.sub[4 * half];
        split_nibbles(s + 64 * half, row, sub[0].low, sub[2].low);
        split_nibbles(s + 64 * half + 32, row, sub[1].low, sub[3].low);
        const uint8_t* high = s + 128 + 32 * half;
        for (int h = 0; h < 2; h++) {
            uint32_t word[4];
            for (int c = 0; c < 4; c++)
                word[c] = load_word(high + 16 * h + 4 * c);
            for (int j = 0; j < 4; j++) {
                uint32_t packed = 0;
                for (int c = 0; c < 4; c++)
                    packed |= (word[c] >> (2 * j) & 0x03030303) << (2 * c);
                store_word(&sub[j].high[h][4 * row], packed);
            }
        }
    }
}

template <class Block>
void pack_blocks(const uint8_t* source, size_t row_bytes, int rows, int32_t blocks, uint8_t* group) {
    Block* out = reinterpret_cast<Block*>(group);
    for (int32_t b = 0; b < blocks; b++)
        for (int row = 0; row < rows; row++)
            pack_row(source + row * row_bytes + static_cast<size_t>(b) * (sizeof(Block) / 8), row, out[b]);
}

// Whether one of 8 floats of 8 bits has a zero in its exponent field.
inline bool has_small_exponent(uint64_t bytes) {
    const uint64_t exponents = bytes & 0x7878787878787878;
    return ((exponents - 0x0101010101010101) & ~exponents & 0x8080808080808080) != 0;
}

template <int Subs>
void pack_small_floats(const uint8_t* source, size_t row_bytes, int rows, int32_t cols, uint8_t* group) {
    auto* out = reinterpret_cast<PackedF8<Subs>*>(group);
    uint8_t* normal = group + static_cast<size_t>(cols / (32 * Subs)) * sizeof(*out);
    std::memset(normal, 0, (cols / 32 + 7) / 8);
    for (int32_t b = 0; b < cols / (32 * Subs); b++, source += sizeof(*out) / 8) {
        for (int row = 0; row < rows; row++)
            std::memcpy(&out[b].d[row], source + row * row_bytes, 4);
        for (int s = 0; s < Subs; s++) {
            bool small = false;
            for (int row = 0; row < rows; row++) {
                const uint8_t* from = source + row * row_bytes + 4 + 32 * s;
                for (int c = 0; c < 8; c++)
                    std::memcpy(&out[b].sub[s].q[c][4 * row], from + 4 * c, 4);
                for (int i = 0; i < 32; i += 8)
                    small |= has_small_exponent(load_long(from + i));
            }
            const int32_t sub = b * Subs + s;
            normal[sub / 8] = static_cast<uint8_t>(normal[sub / 8] | (small ? 0 : 1) << (sub % 8));
        }
    }
}

template <class Element>
void pack_elements(const uint8_t* source, size_t row_bytes, int rows, int32_t cols, uint8_t* group) {
    Element* out = reinterpret_cast<Element*>(group);
    for (int32_t k = 0; k < cols; k++)
        for (int row = 0; row < rows; row++)
            std::memcpy(&out[8 * static_cast<size_t>(k) + row], source + row * row_bytes + k * sizeof(Element),
                        sizeof(Element));
}

// Weight k (0 ... 31) of row `row` in a sub-block, its low 4 bits.
template <class Sub>
int nibble(const Sub& sub, int row, int k) {
    const uint8_t byte = sub.low[k % 16 / 4][4 * row + k % 4];
    return k < 16 ? byte & 15 : byte >> 4;
}

template <class Sub>
int five_bits(const Sub& sub, int row, int k) {
    return nibble(sub, row, k) | (sub.high[4 * row + k % 4] >> (k / 4) & 1) << 4;
}

int six_bits(const PackedQ6_K& block, int sub, int row, int k) {
    const uint8_t high = block.sub[sub].high[k / 16][4 * row + k % 4];
    return nibble(block.sub[sub], row, k) | (high >> (2 * (k % 16 / 4)) & 3) << 4;
}

// Each of these writes one block of one row as floats, with the operations of kernels/reference/dequantize.py.
void unpack(const PackedQ4_0& b, int row, float* out) {
    const float d = half_to_float(b.d[row]);
    for (int k = 0; k < 32; k++)
        out[k] = d * static_cast<float>(nibble(b, row, k) - 8);
}

void unpack(const PackedQ4_1& b, int row, float* out) {
    const float d = half_to_float(b.d[row]), m = half_to_float(b.m[row]);
    for (int k = 0; k < 32; k++)
        out[k] = d * static_cast<float>(nibble(b, row, k)) + m;
}

void unpack(const PackedQ5_0& b, int row, float* out) {
    const float d = half_to_float(b.d[row]);
    for (int k = 0; k < 32; k++)
        out[k] = d * static_cast<float>(five_bits(b, row, k) - 16);
}

void unpack(const PackedQ5_1& b, int row, float* out) {
    const float d = half_to_float(b.d[row]), m = half_to_float(b.m[row]);
    for (int k = 0; k < 32; k++)
        out[k] = d * static_cast<float>(five_bits(b, row, k)) + m;
}

void unpack(const PackedQ8_0& b, int row, float* out) {
    const float d = half_to_float(b.d[row]);
    for (int k = 0; k < 32; k++)
        out[k] = d * static_cast<float>(b.q[k / 4][4 * row + k % 4]);
}

template <int Subs>
void unpack(const PackedI8<Subs>& b, int row, float* out) {
    for (int k = 0; k < 32 * Subs; k++)
        out[k] = b.d[row] * static_cast<float>(b.sub[k / 32].q[k % 32 / 4][4 * row + k % 4] - b.zero[row]);
}

template <int Subs>
void unpack(const PackedI4<Subs>& b, int row, float* out) {
    for (int k = 0; k < 32 * Subs; k++)
        out[k] = b.d[row] * static_cast<float>(nibble(b.sub[k / 32], row, k % 32) - b.zero[row]);
}

template <int Subs>
void unpack(const PackedF8<Subs>& b, int row, float* out) {
    const float d = 256.0f * b.d[row];
    for (int k = 0; k < 32 * Subs; k++)
        out[k] = d * small_float(b.sub[k / 32].q[k % 32 / 4][4 * row + k % 4]);
}

template <class Block, class Weight>
void unpack_k(const Block& b, int row, float* out, Weight weight) {
    const float d = half_to_float(b.d[row]), dmin = half_to_float(b.m[row]);
    for (int sub = 0; sub < 8; sub++) {
        int scale, min;
        k_scale_min(b.scales, row, sub, scale, min);
        const float ds = d * static_cast<float>(scale), dm = dmin * static_cast<float>(min);
        for (int k = 0; k < 32; k++)
            out[32 * sub + k] = ds * static_cast<float>(weight(b.sub[sub], row, k)) - dm;
    }
}

void unpack(const PackedQ4_K& b, int row, float* out) {
    unpack_k(b, row, out, [](const auto& sub, int r, int k) { return nibble(sub, r, k); });
}

void unpack(const PackedQ5_K& b, int row, float* out) {
    unpack_k(b, row, out, [](const auto& sub, int r, int k) { return five_bits(sub, r, k); });
}

void unpack(const PackedQ6_K& b, int row, float* out) {
    const float d = half_to_float(b.d[row]);
    for (int g = 0; g < 16; g++) {
        const float ds = d * static_cast<float>(b.scales[g][row]);
        for (int k = 0; k < 16; k++)
            out[16 * g + k] = ds * static_cast<float>(six_bits(b, g / 2, row, g % 2 * 16 + k) - 32);
    }
}

template <class Block>
void unpack_blocks(const uint8_t* group, int row, int32_t blocks, int32_t block_size, float* out) {
    for (int32_t b = 0; b < blocks; b++)
        unpack(reinterpret_cast<const Block*>(group)[b], row, out + static_cast<size_t>(b) * block_size);
}

float element(int32_t type, const uint8_t* group, size_t index) {
    if (type == kF32) {
        float value;
        std::memcpy(&value, group + 4 * index, 4);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, group + 2 * index, 2);
    if (type == kF16)
        return half_to_float(bits);
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

} // namespace

bool common_integer_type(int32_t type) {
    const FastType* fast = fast_type(type);
    return fast && fast->integer;
}

size_t common_group_bytes(int32_t type, int32_t cols) {
    const FastType* fast = fast_type(type);
    const int32_t block_size = fast ? fast->block_size : generic_block_size(type);
    const int32_t block_bytes = fast ? fast->block_bytes : generic_block_bytes(type);
    if (block_size == 0 || cols <= 0 || cols % block_size != 0)
        return 0;
    size_t bytes = static_cast<size_t>(cols / block_size) * block_bytes * kGroupRows;
    if (type == kF8_32 || type == kF8_128)
        bytes = normal_bits_at(type, cols) + (cols / 32 + 7) / 8;
    return (bytes + 63) / 64 * 64;
}

void common_pack_group(int32_t type, const uint8_t* source, size_t row_bytes, int rows, int32_t cols, uint8_t* group) {
    if (rows < kGroupRows) // rows beyond the matrix are zero weights
        std::memset(group, 0, common_group_bytes(type, cols));
    switch (type) {
    case kQ4_0:
        return pack_blocks<PackedQ4_0>(source, row_bytes, rows, cols / 32, group);
    case kQ4_1:
        return pack_blocks<PackedQ4_1>(source, row_bytes, rows, cols / 32, group);
    case kQ5_0:
        return pack_blocks<PackedQ5_0>(source, row_bytes, rows, cols / 32, group);
    case kQ5_1:
        return pack_blocks<PackedQ5_1>(source, row_bytes, rows, cols / 32, group);
    case kQ8_0:
        return pack_blocks<PackedQ8_0>(source, row_bytes, rows, cols / 32, group);
    case kQ4_K:
        return pack_blocks<PackedQ4_K>(source, row_bytes, rows, cols / 256, group);
    case kQ5_K:
        return pack_blocks<PackedQ5_K>(source, row_bytes, rows, cols / 256, group);
    case kQ6_K:
        return pack_blocks<PackedQ6_K>(source, row_bytes, rows, cols / 256, group);
    case kI8_32:
        return pack_blocks<PackedI8<1>>(source, row_bytes, rows, cols / 32, group);
    case kI8_128:
        return pack_blocks<PackedI8<4>>(source, row_bytes, rows, cols / 128, group);
    case kI4_32:
        return pack_blocks<PackedI4<1>>(source, row_bytes, rows, cols / 32, group);
    case kI4_64:
        return pack_blocks<PackedI4<2>>(source, row_bytes, rows, cols / 64, group);
    case kI4_128:
        return pack_blocks<PackedI4<4>>(source, row_bytes, rows, cols / 128, group);
    case kF8_32:
        return pack_small_floats<1>(source, row_bytes, rows, cols, group);
    case kF8_128:
        return pack_small_floats<4>(source, row_bytes, rows, cols, group);
    case kF32:
        return pack_elements<uint32_t>(source, row_bytes, rows, cols, group);
    case kF16:
    case kBF16:
        return pack_elements<uint16_t>(source, row_bytes, rows, cols, group);
    default: {
        const size_t bytes = static_cast<size_t>(cols / generic_block_size(type)) * generic_block_bytes(type);
        for (int row = 0; row < rows; row++)
            std::memcpy(group + row * bytes, source + row * row_bytes, bytes);
    }
    }
}

void common_unpack_row(const PackedMatrix& w, int32_t row, float* out) {
    const uint8_t* group = w.data + static_cast<size_t>(row / kGroupRows) * w.group_bytes;
    const int lane = row % kGroupRows;
    switch (w.type) {
    case kQ4_0:
        return unpack_blocks<PackedQ4_0>(group, lane, w.cols / 32, 32, out);
    case kQ4_1:
        return unpack_blocks<PackedQ4_1>(group, lane, w.cols / 32, 32, out);
    case kQ5_0:
        return unpack_blocks<PackedQ5_0>(group, lane, w.cols / 32, 32, out);
    case kQ5_1:
        return unpack_blocks<PackedQ5_1>(group, lane, w.cols / 32, 32, out);
    case kQ8_0:
        return unpack_blocks<PackedQ8_0>(group, lane, w.cols / 32, 32, out);
    case kQ4_K:
        return unpack_blocks<PackedQ4_K>(group, lane, w.cols / 256, 256, out);
    case kQ5_K:
        return unpack_blocks<PackedQ5_K>(group, lane, w.cols / 256, 256, out);
    case kQ6_K:
        return unpack_blocks<PackedQ6_K>(group, lane, w.cols / 256, 256, out);
    case kI8_32:
        return unpack_blocks<PackedI8<1>>(group, lane, w.cols / 32, 32, out);
    case kI8_128:
        return unpack_blocks<PackedI8<4>>(group, lane, w.cols / 128, 128, out);
    case kI4_32:
        return unpack_blocks<PackedI4<1>>(group, lane, w.cols / 32, 32, out);
    case kI4_64:
        return unpack_blocks<PackedI4<2>>(group, lane, w.cols / 64, 64, out);
    case kI4_128:
        return unpack_blocks<PackedI4<4>>(group, lane, w.cols / 128, 128, out);
    case kF8_32:
        return unpack_blocks<PackedF8<1>>(group, lane, w.cols / 32, 32, out);
    case kF8_128:
        return unpack_blocks<PackedF8<4>>(group, lane, w.cols / 128, 128, out);
    case kF32:
    case kF16:
    case kBF16:
        for (int32_t k = 0; k < w.cols; k++)
            out[k] = element(w.type, group, 8 * static_cast<size_t>(k) + lane);
        return;
    default: {
        const int32_t blocks = w.cols / generic_block_size(w.type);
        const size_t bytes = static_cast<size_t>(blocks) * generic_block_bytes(w.type);
        generic_dequantize(w.type, group + lane * bytes, blocks, out);
    }
    }
}

void common_float_panel(const PackedMatrix& w, int group, int32_t begin, int32_t end, float* out) {
    const uint8_t* data = w.data + static_cast<size_t>(group) * w.group_bytes;
    if (w.type == kF32 || w.type == kF16 || w.type == kBF16) {
        for (size_t i = 8 * static_cast<size_t>(begin); i < 8 * static_cast<size_t>(end); i++)
            *out++ = element(w.type, data, i);
        return;
    }
    const int32_t block_size = generic_block_size(w.type), block_bytes = generic_block_bytes(w.type);
    const size_t bytes = static_cast<size_t>(w.cols / block_size) * block_bytes;
    float values[256];
    for (int row = 0; row < kGroupRows; row++)
        for (int32_t k = begin; k < end; k += 256) {
            const int32_t count = end - k < 256 ? end - k : 256;
            const uint8_t* source = data + row * bytes + static_cast<size_t>(k / block_size) * block_bytes;
            generic_dequantize(w.type, source, count / block_size, values);
            for (int32_t i = 0; i < count; i++)
                out[8 * (k - begin + i) + row] = values[i];
        }
}

} // namespace li
