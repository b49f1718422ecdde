// Tokens over a panel with 32 registers of 512 bits: 16 rows in a register, T tokens at a time with all sums in registers.
// Included by matmul_x86.inl; T = 0 is never called.

// Integer sums over 16 k of 16 rows, for T tokens; `sum` holds their start values.
template <int T>
LI_INLINE void dot_tokens(const uint8_t (*steps)[2][32], const int8_t* q, size_t stride, __m512i* sum) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m512i w = _mm512_load_si512(steps[c]);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            int32_t word;
            std::memcpy(&word, q + t * stride + 4 * c, 4);
            sum[t] = _mm512_dpbusd_epi32(sum[t], w, _mm512_set1_epi32(word));
        }
    }
}

template <Weight weight, bool HasMin, int T>
LI_INLINE void tile_simple(const Panel& p, int subs, const Rows& rows, size_t first, int, float (*acc)[16]) {
    if constexpr (T > 0) {
        __m512 total[T], partial[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
            total[t] = _mm512_load_ps(acc[t]);
#pragma GCC unroll 1
        for (int s = 0; s < subs; s++) {
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                const size_t g = 2 * (first + s) + half;
                __m512i sum[T];
#pragma GCC unroll 8
                for (int t = 0; t < T; t++)
                    sum[t] = weight == Weight::s8 ? _mm512_set1_epi32(rows.offset[t * rows.offset_stride + g])
                                                  : _mm512_setzero_si512();
                dot_tokens<T>(p.w[s] + 4 * half, rows.q + 16 * g, rows.q_stride, sum);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) {
                    const __m512 a = _mm512_set1_ps(rows.scale[t * rows.scale_stride + g]), i = _mm512_cvtepi32_ps(sum[t]);
                    partial[t] = half ? _mm512_fmadd_ps(i, a, partial[t]) : _mm512_mul_ps(i, a);
                }
            }
            const __m512 d = _mm512_load_ps(p.d[s]), m = _mm512_load_ps(p.m[s]);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                total[t] = _mm512_fmadd_ps(d, partial[t], total[t]);
                if (HasMin)
                    total[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(rows.sum32[t * rows.sum32_stride + first + s]), total[t]);
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
            _mm512_store_ps(acc[t], total[t]);
    }
}

// The two chains of a block of 256 and its end. Mins: 8 per panel, or 16.
template <int T, int Mins, bool Negate>
LI_INLINE void tile_block(const Panel& p, const Rows& rows, size_t first, const float* mins, size_t mins_stride,
                          float (*acc)[16]) {
    __m512 total[T], lows[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        total[t] = lows[t] = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (int j = 0; j < kPanelSubs; j++) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const size_t g = 2 * (first + j) + half;
            __m512i sum[T];
#pragma GCC unroll 8
            for (int t = 0; t < T; t++)
                sum[t] = _mm512_setzero_si512();
            dot_tokens<T>(p.w[j] + 4 * half, rows.q + 16 * g, rows.q_stride, sum);
            const int at = Mins == 16 ? 2 * j + half : j;
            const __m512i scale = _mm512_load_si512(p.scale[at]);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++)
                total[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_mullo_epi32(sum[t], scale)),
                                           _mm512_set1_ps(rows.scale[t * rows.scale_stride + g]), total[t]);
            if (Mins == 16 || half) {
                const __m512 min = _mm512_load_ps(p.min[at]);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++)
                    lows[t] = _mm512_fmadd_ps(min, _mm512_set1_ps(mins[t * mins_stride + at]), lows[t]);
            }
        }
    }
    const __m512 d = _mm512_load_ps(p.d[0]), m = _mm512_load_ps(p.m[0]);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
        const __m512 sum = _mm512_fmadd_ps(d, total[t], _mm512_load_ps(acc[t]));
        _mm512_store_ps(acc[t], Negate ? _mm512_fnmadd_ps(m, lows[t], sum) : _mm512_fmadd_ps(m, lows[t], sum));
    }
}

template <Weight weight, int T>
LI_INLINE void tile_k(const Panel& p, const Rows& rows, size_t first, int, float (*acc)[16]) {
    if constexpr (T > 0)
        tile_block<T, 8, true>(p, rows, first, rows.sum32 + first, rows.sum32_stride, acc);
}

template <int T>
LI_INLINE void tile_q6_k(const Panel& p, const Rows& rows, size_t first, int, float (*acc)[16]) {
    if constexpr (T > 0)
        tile_block<T, 16, false>(p, rows, first, rows.sum16 + 2 * first, rows.scale_stride, acc);
}
