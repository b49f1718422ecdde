// T tokens over a panel of 16 rows. Included by matmul_x86.inl; the instruction set gives
//   tile_dot<weight, T>(steps, q, stride, offset, offset_stride, sum)    sums over 16 k of 16 rows as int32
//   tile_dot_scaled<weight, T>(steps, q, stride, scale, sum)             the same times the rows' integer scales

// Float sums of T tokens x 16 rows: in registers where there are enough, else in memory, where the compiler would
// otherwise not leave them.
template <int T>
struct FloatSums {
    __m256 room[T][2];
    __m256 (*at)[2] = room;

    __attribute__((always_inline)) FloatSums() {
        if constexpr (!kManyRegisters)
            asm("" : "+r"(at));
    }
    __attribute__((always_inline)) __m256& operator()(int t, int side) {
        if constexpr (kManyRegisters)
            return room[t][side];
        else
            return at[t][side];
    }
};

template <Weight weight, bool HasMin, int T>
LI_INLINE void tile_simple(const Panel& p, int subs, const Rows& rows, size_t first, float (*acc)[16]) {
    FloatSums<T> partial;
#pragma GCC unroll 1
    for (int s = 0; s < subs; s++) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const size_t g = 2 * (first + s) + half;
            __m256i sum[T][2];
            tile_dot<weight, T>(p.w[s] + 4 * half, rows.q + 16 * g, rows.q_stride, offset_at<weight>(rows, 0, g),
                                rows.offset_stride, sum);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m256 a = broadcast(rows.scale + t * rows.scale_stride + g);
#pragma GCC unroll 2
                for (int r = 0; r < 2; r++) {
                    const __m256 i = _mm256_cvtepi32_ps(sum[t][r]);
                    partial(t, r) = half ? _mm256_fmadd_ps(i, a, partial(t, r)) : _mm256_mul_ps(i, a);
                }
            }
        }
        const __m256 d[2] = {_mm256_load_ps(p.d[s]), _mm256_load_ps(p.d[s] + 8)};
        const __m256 m[2] = {_mm256_load_ps(p.m[s]), _mm256_load_ps(p.m[s] + 8)};
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m256 sum32 = broadcast(rows.sum32 + t * rows.sum32_stride + first + s);
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++) {
                __m256 total = _mm256_fmadd_ps(d[r], partial(t, r), _mm256_load_ps(acc[t] + 8 * r));
                if constexpr (HasMin)
                    total = _mm256_fmadd_ps(m[r], sum32, total);
                _mm256_store_ps(acc[t] + 8 * r, total);
            }
        }
    }
}

// A block of 256: the chain of scaled sums, then that of the mins (8 per block, or 16), then both into acc.
template <Weight weight, int T, int Mins, bool Negate>
LI_INLINE void tile_block(const Panel& p, const Rows& rows, size_t first, const float* mins, size_t mins_stride,
                          float (*acc)[16]) {
    FloatSums<T> total;
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        total(t, 0) = total(t, 1) = _mm256_setzero_ps();
#pragma GCC unroll 1
    for (int g = 0; g < 2 * kPanelSubs; g++) {
        __m256i sum[T][2];
        tile_dot_scaled<weight, T>(p.w[g / 2] + 4 * (g % 2), rows.q + 32 * first + 16 * g, rows.q_stride,
                                   p.scale[Mins == 16 ? g : g / 2], sum);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m256 a = broadcast(rows.scale + t * rows.scale_stride + 2 * first + g);
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++)
                total(t, r) = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t][r]), a, total(t, r));
        }
    }
    __m256 low[T][2];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        low[t][0] = low[t][1] = _mm256_setzero_ps();
#pragma GCC unroll 1
    for (int j = 0; j < Mins; j++) {
        const __m256 min[2] = {_mm256_load_ps(p.min[j]), _mm256_load_ps(p.min[j] + 8)};
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m256 x = broadcast(mins + t * mins_stride + j);
            low[t][0] = _mm256_fmadd_ps(min[0], x, low[t][0]);
            low[t][1] = _mm256_fmadd_ps(min[1], x, low[t][1]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
            const __m256 d = _mm256_load_ps(p.d[0] + 8 * r), m = _mm256_load_ps(p.m[0] + 8 * r);
            const __m256 sum = _mm256_fmadd_ps(d, total(t, r), _mm256_load_ps(acc[t] + 8 * r));
            _mm256_store_ps(acc[t] + 8 * r,
                            Negate ? _mm256_fnmadd_ps(m, low[t][r], sum) : _mm256_fmadd_ps(m, low[t][r], sum));
        }
}
