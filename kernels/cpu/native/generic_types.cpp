// Dequantizers of the types without fast kernels. Layouts and formulas are documented per type in
// kernels/reference/dequantize.py; products and sums here are rounded in the same order, so the floats are the same.
#include <atomic>
#include <cmath>

#include "api.h"
#include "matmul.h"
#include "matmul_layout.h"

namespace li {
namespace {

template <class T>
T read(const uint8_t* p, int index = 0) {
    T value;
    std::memcpy(&value, p + index * sizeof(T), sizeof(T));
    return value;
}

float read_half(const uint8_t* p) {
    return half_to_float(read<uint16_t>(p));
}

// Field `index` of `bits` bits in a sequence of bytes.
template <int bits>
int field(const uint8_t* p, int index) {
    return p[index * bits / 8] >> (index * bits % 8) & ((1 << bits) - 1);
}

// Weight `index` of interleaved fields: of each run of `width` bytes, first all lowest fields, then all next ones.
template <int bits, int width>
int plane(const uint8_t* p, int index) {
    constexpr int per_run = width * (8 / bits);
    const int run = index / per_run, level = index % per_run / width, byte = index % width;
    return p[run * width + byte] >> (level * bits) & ((1 << bits) - 1);
}

float sign(int bit) {
    return bit ? -1.0f : 1.0f;
}

// Bit `index` of the 8 signs that 7 stored bits stand for: the eighth makes the number of minus signs even.
int even_sign(uint32_t seven_bits, int index) {
    const uint32_t bits = seven_bits & 127;
    if (index < 7)
        return bits >> index & 1;
    uint32_t parity = bits ^ bits >> 4;
    parity ^= parity >> 2;
    return (parity ^ parity >> 1) & 1;
}

constexpr int8_t kTwiceE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// ---- code books, given once by the caller (see li_cpu_set_codebook)

enum BookId { kIq2Xxs, kIq2Xs, kIq2S, kIq3Xxs, kIq3S, kIq1, kBooks };
constexpr int kBookEntries[kBooks] = {256, 512, 1024, 256, 512, 2048};
constexpr int kBookWidths[kBooks] = {8, 8, 8, 4, 4, 8};
int8_t books[kBooks][2048 * 8];
std::atomic<bool> book_is_set[kBooks];

template <BookId id>
const int8_t* entry(int index) {
    return books[id] + index * kBookWidths[id];
}

// ---- one block each

template <class T>
void numbers(const uint8_t* p, float* out) {
    *out = static_cast<float>(read<T>(p));
}

void q2_k(const uint8_t* p, float* out) {
    const float d = read_half(p + 80), dmin = read_half(p + 82);
    for (int k = 0; k < 256; k++) {
        const uint8_t scale = p[k / 16];
        const float ds = d * static_cast<float>(scale & 15), dm = dmin * static_cast<float>(scale >> 4);
        out[k] = ds * static_cast<float>(plane<2, 32>(p + 16, k)) - dm;
    }
}

void q3_k(const uint8_t* p, float* out) {
    const float d = read_half(p + 108);
    const uint8_t* scales = p + 96;
    for (int k = 0; k < 256; k++) {
        const int s = plane<4, 8>(scales, k / 16) | plane<2, 4>(scales + 8, k / 16) << 4;
        const int q = plane<2, 32>(p + 32, k) | plane<1, 32>(p, k) << 2;
        out[k] = d * static_cast<float>(s - 32) * static_cast<float>(q - 4);
    }
}

int base3_digit(uint8_t byte, int digit) {
    constexpr uint8_t powers[5] = {1, 3, 9, 27, 81};
    return static_cast<uint8_t>(byte * powers[digit]) * 3 >> 8;
}

void tq1_0(const uint8_t* p, float* out) {
    const float d = read_half(p + 52);
    for (int k = 0; k < 160; k++)
        *out++ = d * static_cast<float>(base3_digit(p[k % 32], k / 32) - 1);
    for (int k = 0; k < 80; k++)
        *out++ = d * static_cast<float>(base3_digit(p[32 + k % 16], k / 16) - 1);
    for (int k = 0; k < 16; k++)
        *out++ = d * static_cast<float>(base3_digit(p[48 + k % 4], k / 4) - 1);
}

void tq2_0(const uint8_t* p, float* out) {
    const float d = read_half(p + 64);
    for (int k = 0; k < 256; k++)
        out[k] = d * static_cast<float>(plane<2, 32>(p, k) - 1);
}

void mxfp4(const uint8_t* p, float* out) {
    const float scale = std::ldexp(1.0f, p[0] - 128);
    for (int k = 0; k < 32; k++)
        out[k] = scale * static_cast<float>(kTwiceE2M1[plane<4, 16>(p + 1, k)]);
}

void nvfp4(const uint8_t* p, float* out) {
    for (int g = 0; g < 4; g++) {
        const int exponent = p[g] >> 3 & 15;
        const float mantissa = static_cast<float>(p[g] & 7) / 8.0f;
        float scale = std::ldexp(mantissa + (exponent > 0 ? 1.0f : 0.0f), (exponent > 0 ? exponent : 1) - 8);
        if (p[g] == 0x7f)
            scale = 0.0f;
        for (int k = 0; k < 16; k++)
            *out++ = scale * static_cast<float>(kTwiceE2M1[plane<4, 8>(p + 4 + 8 * g, k)]);
    }
}

void iq4_nl(const uint8_t* p, float* out) {
    const float d = read_half(p);
    for (int k = 0; k < 32; k++)
        out[k] = d * static_cast<float>(kLevels[plane<4, 16>(p + 2, k)]);
}

void iq4_xs(const uint8_t* p, float* out) {
    const float d = read_half(p);
    for (int b = 0; b < 8; b++) {
        const int s = field<4>(p + 4, b) | field<2>(p + 2, b) << 4;
        const float scale = d * static_cast<float>(s - 32);
        for (int k = 0; k < 32; k++)
            *out++ = scale * static_cast<float>(kLevels[plane<4, 16>(p + 8 + 16 * b, k)]);
    }
}

void iq2_xxs(const uint8_t* p, float* out) {
    const float d = read_half(p);
    for (int b = 0; b < 8; b++) {
        const uint8_t* group = p + 2 + 8 * b;
        const uint32_t signs = read<uint32_t>(group + 4);
        const float scale = d * (0.5f + static_cast<float>(signs >> 28)) * 0.25f;
        for (int k = 0; k < 32; k++)
            *out++ = scale * static_cast<float>(entry<kIq2Xxs>(group[k / 8])[k % 8]) *
                     sign(even_sign(signs >> (7 * (k / 8)), k % 8));
    }
}

void iq2_xs(const uint8_t* p, float* out) {
    const float d = read_half(p);
    for (int e = 0; e < 32; e++) {
        const uint16_t q = read<uint16_t>(p + 2, e);
        const float scale = d * (0.5f + static_cast<float>(field<4>(p + 66, e / 2))) * 0.25f;
        for (int k = 0; k < 8; k++)
            *out++ = scale * static_cast<float>(entry<kIq2Xs>(q & 511)[k]) * sign(even_sign(q >> 9, k));
    }
}

void iq2_s(const uint8_t* p, float* out) {
    const float d = read_half(p);
    for (int e = 0; e < 32; e++) {
        const int index = p[2 + e] | field<2>(p + 66, e) << 8;
        const float scale = d * (0.5f + static_cast<float>(field<4>(p + 74, e / 2))) * 0.25f;
        for (int k = 0; k < 8; k++)
            *out++ = scale * static_cast<float>(entry<kIq2S>(index)[k]) * sign(p[34 + e] >> k & 1);
    }
}

void iq3_xxs(const uint8_t* p, float* out) {
    const float d = read_half(p);
    for (int b = 0; b < 8; b++) {
        const uint32_t signs = read<uint32_t>(p + 66, b);
        const float scale = d * (0.5f + static_cast<float>(signs >> 28)) * 0.5f;
        for (int k = 0; k < 32; k++)
            *out++ = scale * static_cast<float>(entry<kIq3Xxs>(p[2 + 8 * b + k / 4])[k % 4]) *
                     sign(even_sign(signs >> (7 * (k / 8)), k % 8));
    }
}

void iq3_s(const uint8_t* p, float* out) {
    const float d = read_half(p);
    for (int k = 0; k < 256; k++) {
        const int index = p[2 + k / 4] | field<1>(p + 66, k / 4) << 8;
        const float scale = d * (1.0f + 2.0f * static_cast<float>(field<4>(p + 106, k / 32)));
        out[k] = scale * static_cast<float>(entry<kIq3S>(index)[k % 4]) * sign(field<1>(p + 74, k));
    }
}

void iq1_s(const uint8_t* p, float* out) {
    const float d = read_half(p);
    for (int e = 0; e < 32; e++) {
        const uint16_t high = read<uint16_t>(p + 34, e / 4);
        const float scale = d * (2.0f * static_cast<float>(high >> 12 & 7) + 1.0f);
        const float shift = high >> 15 ? -0.125f : 0.125f;
        const int index = p[2 + e] | (high >> (3 * (e % 4)) & 7) << 8;
        for (int k = 0; k < 8; k++)
            *out++ = scale * (static_cast<float>(entry<kIq1>(index)[k]) + shift);
    }
}

void iq1_m(const uint8_t* p, float* out) {
    uint16_t bits = 0;
    for (int i = 0; i < 4; i++)
        bits = static_cast<uint16_t>(bits | (read<uint16_t>(p + 48, i) >> 12) << (4 * i));
    const float d = half_to_float(bits);
    for (int e = 0; e < 32; e++) {
        const int group = e / 2; // 16 weights
        const int s = read<uint16_t>(p + 48, group / 4) >> (3 * (group % 4)) & 7;
        const float scale = d * (2.0f * static_cast<float>(s) + 1.0f);
        const int high = field<4>(p + 32, e);
        const float shift = high & 8 ? -0.125f : 0.125f;
        const int index = p[e] | (high & 7) << 8;
        for (int k = 0; k < 8; k++)
            *out++ = scale * (static_cast<float>(entry<kIq1>(index)[k]) + shift);
    }
}

struct GenericType {
    int32_t type, block_size, block_bytes;
    void (*dequantize)(const uint8_t*, float*);
    int book; // or -1
};
constexpr GenericType kTypes[] = {
    {10, 256, 84, q2_k, -1},          {11, 256, 110, q3_k, -1},           {16, 256, 66, iq2_xxs, kIq2Xxs},
    {17, 256, 74, iq2_xs, kIq2Xs},    {18, 256, 98, iq3_xxs, kIq3Xxs},    {19, 256, 50, iq1_s, kIq1},
    {20, 32, 18, iq4_nl, -1},         {21, 256, 110, iq3_s, kIq3S},       {22, 256, 82, iq2_s, kIq2S},
    {23, 256, 136, iq4_xs, -1},       {24, 1, 1, numbers<int8_t>, -1},    {25, 1, 2, numbers<int16_t>, -1},
    {26, 1, 4, numbers<int32_t>, -1}, {27, 1, 8, numbers<int64_t>, -1},   {28, 1, 8, numbers<double>, -1},
    {29, 256, 56, iq1_m, kIq1},       {34, 256, 54, tq1_0, -1},           {35, 256, 66, tq2_0, -1},
    {39, 32, 17, mxfp4, -1},          {40, 64, 36, nvfp4, -1},
};

const GenericType* find(int32_t type) {
    for (const GenericType& row : kTypes)
        if (row.type == type)
            return row.book < 0 || book_is_set[row.book].load(std::memory_order_acquire) ? &row : nullptr;
    return nullptr;
}

} // namespace

int32_t generic_block_size(int32_t type) {
    const GenericType* row = find(type);
    return row ? row->block_size : 0;
}

int32_t generic_block_bytes(int32_t type) {
    const GenericType* row = find(type);
    return row ? row->block_bytes : 0;
}

void generic_dequantize(int32_t type, const uint8_t* source, int32_t blocks, float* out) {
    const GenericType* row = find(type);
    for (int32_t b = 0; row && b < blocks; b++)
        row->dequantize(source + static_cast<size_t>(b) * row->block_bytes,
                        out + static_cast<size_t>(b) * row->block_size);
}

} // namespace li

// Gives the code book of an IQ1, IQ2 or IQ3 type (ggml type id): `size` signed bytes, entries one after the other.
// Until then such a type is unsupported. Call before any model is loaded; returns 0, or -1 if type or size is wrong.
LI_API int li_cpu_set_codebook(int32_t type, const int8_t* entries, size_t size) {
    for (const li::GenericType& row : li::kTypes) {
        if (row.type != type || row.book < 0)
            continue;
        if (size != static_cast<size_t>(li::kBookEntries[row.book]) * li::kBookWidths[row.book])
            return -1;
        if (!li::book_is_set[row.book].load(std::memory_order_acquire)) {
            std::memcpy(li::books[row.book], entries, size);
            li::book_is_set[row.book].store(true, std::memory_order_release);
        }
        return 0;
    }
    return -1;
}
