// Numbers of the sampler that are the same bits on every machine: written arithmetic only, nothing of the C library.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

namespace li {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLog2 = 0.69314718055994531; // of the natural logarithm

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// e^x for x <= 0 within 2 ulp, 0 below -87 (such a token, 1e-38 times as likely as the likeliest, is never drawn).
// Without branches, so that the compiler vectorizes it.
inline float exp_negative(float x) {
    const uint32_t magnitude = bits_of(x) & 0x7FFFFFFF;
    const uint32_t in_range = 0u - uint32_t(int32_t(magnitude) <= 0x42AE0000); // all ones if |x| <= 87
    const float z = float_of((magnitude & in_range) | 0x80000000);
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    const float shifted = z * 1.44269504f + magic;
    const float n = shifted - magic;
    const float r = (z - n * 0.693359375f) + n * 2.12194440e-4f; // ln 2 in two parts
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    // Times 2^n: the low bits of `shifted` are n.
    return float_of((bits_of(p) + (bits_of(shifted) << 23)) & in_range);
}

// ln x for a normal x > 0, to about 1e-15 of itself or of 1.
inline double log_of(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    int exponent = int(bits >> 52) - 1023;
    bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000;
    double mantissa; // in [1, 2), and then in [0.7, 1.42)
    std::memcpy(&mantissa, &bits, sizeof mantissa);
    if (mantissa > 1.4142135623730951) {
        mantissa /= 2;
        ++exponent;
    }
    const double t = (mantissa - 1) / (mantissa + 1), square = t * t; // ln m = 2 (t + t^3 / 3 + t^5 / 5 + ...)
    double series = 0;
    for (int k = 23; k >= 1; k -= 2) series = series * square + 1.0 / k;
    return exponent * kLog2 + 2 * t * series;
}

// e^x to about 1e-15 of itself; 0 below -708 and infinite above 709.
inline double exp_of(double x) {
    if (x < -708) return 0;
    if (x > 709) return std::numeric_limits<double>::infinity();
    const double magic = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer
    const double n = (x / kLog2 + magic) - magic;
    const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10; // ln 2 in two parts
    double series = 1;
    for (int k = 14; k >= 1; --k) series = 1 + series * r / k;
    const uint64_t bits = uint64_t(int64_t(n) + 1023) << 52;
    double scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return series * scale;
}

// base^exponent for a base in [0, 1] and an exponent >= 0.
inline double power_of_share(double base, double exponent) {
    if (exponent == 0) return 1;
    return base < 1e-300 ? 0 : exp_of(exponent * log_of(base));
}

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3").
inline void philox(uint32_t counter[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * counter[0];
        const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
        const uint32_t next0 = uint32_t(b >> 32) ^ counter[1] ^ key0;
        const uint32_t next2 = uint32_t(a >> 32) ^ counter[3] ^ key1;
        counter[1] = uint32_t(b);
        counter[3] = uint32_t(a);
        counter[0] = next0;
        counter[2] = next2;
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
}

// What a random number decides: at one place there may be several, which know nothing of each other.
enum Purpose : uint32_t { kToken = 0, kExclusion = 1 };

// The number at a position of one of several answers: uniform in [0, 1), 53 bits, a function of these numbers alone.
inline double uniform(uint64_t seed, uint64_t position, uint32_t choice, uint32_t purpose) {
    uint32_t counter[4] = {uint32_t(position), uint32_t(position >> 32), choice, purpose};
    philox(counter, uint32_t(seed), uint32_t(seed >> 32));
    return double((uint64_t{counter[0]} << 21) ^ (counter[1] >> 11)) * 0x1p-53;
}

} // namespace li
