// Matrix products with quantized weights: y[t, n] = sum over k of x[t, k] * W[n, k] (+ bias[n]).
//
// The contract that makes every instruction set, thread count, batch shape and chunking give the same bits:
// each output is one chain of float operations in ascending k, written below, with only the fused
// multiply-adds written here (the files are compiled with -ffp-contract=off). Integer parts are exact, so they may be
// summed in any order.
//
// Activations are int8 with one float scale per 16 values (a[g], g = k / 16), rounded to nearest, ties to even:
//   a[g] = max|x| / 127,  q = round(x * (127 / max|x|)),
//   except that a group with max|x| < 2^-119 is zero (a = 0, q = 0), and one with an infinity or a NaN has a = NaN and
//   q = 0;
//   s16[g] = a[g] * float(sum of q over the 16),  s32[b] = s16[2b] + s16[2b + 1]
// With i(g) = sum over the 16 of u * q, u the unsigned stored weight (signed for Q8_0 and I8):
//   Q4_0, Q5_0   t = float(i(2b)) * a[2b];  t = fma(float(i(2b+1)), a[2b+1], t)
//                acc = fma(d, t, acc);  acc = fma(-z * d, s32[b], acc)                    z = 8, 16 (-z * d is exact)
//   Q4_1, Q5_1   the same t;  acc = fma(d, t, acc);  acc = fma(m, s32[b], acc)
//   Q8_0         the same t;  acc = fma(d, t, acc)
//   I8_n, I4_n   per 32 of a block of n, whose d and z these share:
//                the same t;  acc = fma(d, t, acc);  acc = fma(-d * z, s32[b], acc)       -d * z is rounded
//   Q4_K, Q5_K   per block of 256, over its 8 sub-blocks j of 32 with 6-bit sc[j], m[j]:
//                t = fma(float(i(2j) * sc[j]), a[2j], t);  t = fma(float(i(2j+1) * sc[j]), a[2j+1], t)
//                u = fma(float(m[j]), s32[j], u)                                          t = u = 0 at block start
//                acc = fma(d, t, acc);  acc = fma(-dmin, u, acc)
//   Q6_K         per block of 256, over its 16 sub-blocks g of 16 with int8 sc[g], u = stored 6 bits:
//                t = fma(float(i(g) * sc[g]), a[g], t);  v = fma(float(sc[g]), s16[g], v)
//                acc = fma(d, t, acc);  acc = fma(-32 * d, v, acc)
//   F8_n         per 32 of a block of n, with the 8-bit floats as e / 256 (see kernels/reference/dequantize.py):
//                t = fma(e[k] / 256, x[k], t), t = 0 at the start;  acc = fma(256 * d, t, acc)
//   all others   float weights w[n, k] (dequantized as kernels/reference/dequantize.py does): acc = fma(w, x[k], acc)
// and at the end y = acc, or acc + bias[n] if there is a bias.
#pragma once

#include <cstddef>
#include <cstdint>

namespace li {

// Rows of a packed matrix are stored in groups of 8 (one row per float lane of a 256-bit register).
constexpr int kGroupRows = 8;

struct PackedMatrix {
    int32_t type;        // id in kernels/types.py
    int32_t rows, cols;  // as in the file; the last group is padded with zero rows
    const uint8_t* data; // groups of 8 rows, `group_bytes` apart, 64-byte aligned
    size_t group_bytes;
};

// Input rows in both forms; a kernel reads the one that its weight type needs. Strides in elements. A `q_stride` that
// is a multiple of 1024 costs speed (rows of a tile would share cache sets): add 64 to it then.
struct Activations {
    int32_t cols;
    const float* x;
    size_t x_stride;
    const int8_t* q; // [rows, cols]; null if no integer-type matrix reads them
    size_t q_stride;
    const float* scale; // a   [rows, cols / 16]
    const float* sum16; // s16 [rows, cols / 16]
    const float* sum32; // s32 [rows, cols / 32]
    size_t scale_stride, sum32_stride;
};

// One instruction set's implementation. Stateless; every function may run in many threads at once.
struct MatmulKernels {
    // Whether weights of this type are multiplied with int8 activations (else with floats).
    bool (*integer_type)(int32_t type);
    // Bytes of one packed group of 8 rows.
    size_t (*group_bytes)(int32_t type, int32_t cols);
    // Packs `rows` (1 to 8) rows as they lie in a file, `row_bytes` apart, into one group.
    void (*pack_group)(int32_t type, const uint8_t* source, size_t row_bytes, int rows, int32_t cols, uint8_t* group);
    // Row `row` of a packed matrix as floats (embedding lookup), exactly as the reference dequantizes it.
    void (*unpack_row)(const PackedMatrix& w, int32_t row, float* out);
    // Quantizes one row of `cols` (a multiple of 32) floats.
    void (*quantize_row)(const float* x, int32_t cols, int8_t* q, float* scale, float* sum16, float* sum32);
    // y[t * y_stride + n] for input rows t in [0, tokens) and weight rows n of groups [group_begin, group_end),
    // n < w.rows only. `bias` is null or [w.rows].
    void (*multiply)(const PackedMatrix& w, const Activations& a, int tokens, int group_begin, int group_end, float* y,
                     size_t y_stride, const float* bias);
};

// Filled by matmul_<isa>.cpp. A set that the compiler does not target is null.
const MatmulKernels* matmul_portable();
const MatmulKernels* matmul_avx2();
const MatmulKernels* matmul_avx512vnni();

} // namespace li
