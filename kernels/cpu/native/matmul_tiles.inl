// T tokens over a panel of two wide vectors of rows. Included by matmul_x86.inl; the instruction set gives the wide vectors
// (WideInt, WideFloat, wide_...) and
//   tile_dot<weight, T>(steps, q, stride, offset, offset_stride, sum)    sums over 16 k of all rows as int32
//   tile_dot_scaled<weight, T>(steps, q, stride, scale, sum)             the same times the rows' integer scales

// Float sums of T tokens: in registers where there are enough, else in memory, where the compiler would
// otherwise not leave them.
template <int T>
struct FloatSums {
    WideFloat room[T][2];
    WideFloat (*at)[2] = room;

    __attribute__((always_inline)) FloatSums() {
        if constexpr (!kManyRegisters)
            asm("" : "+r"(at));
    }
    __attribute__((always_inline)) WideFloat& operator()(int t, int side) {
        if constexpr (kManyRegisters)
            return room[t][side];
        else
            return at[t][side];
    }
};

template <Weight weight, bool HasMin, int T>
LI_INLINE void tile_simple(const Panel& p, int subs, const Rows& rows, size_t first, float (*acc)[kPanelRows]) {
    FloatSums<T> partial;
#pragma GCC unroll 1
    for (int s = 0; s < subs; s++) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const size_t g = 2 * (first + s) + half;
            WideInt sum[T][2];
            tile_dot<weight, T>(p.w[s] + 4 * half, rows.q + 16 * g, rows.q_stride, offset_at<weight>(rows, 0, g),
                                rows.offset_stride, sum);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const WideFloat a = wide_broadcast(rows.scale + t * rows.scale_stride + g);
#pragma GCC unroll 2
                for (int r = 0; r < 2; r++) {
                    const WideFloat i = wide_from_int(sum[t][r]);
                    partial(t, r) = half ? wide_fma(i, a, partial(t, r)) : wide_mul(i, a);
                }
            }
        }
        const WideFloat d[2] = {wide_load(p.d[s]), wide_load(p.d[s] + kWideLanes)};
        const WideFloat m[2] = {wide_load(p.m[s]), wide_load(p.m[s] + kWideLanes)};
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const WideFloat sum32 = wide_broadcast(rows.sum32 + t * rows.sum32_stride + first + s);
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++) {
                WideFloat total = wide_fma(d[r], partial(t, r), wide_load(acc[t] + kWideLanes * r));
                if constexpr (HasMin)
                    total = wide_fma(m[r], sum32, total);
                wide_store(acc[t] + kWideLanes * r, total);
            }
        }
    }
}

// A block of 256: the chain of scaled sums, then that of the mins (8 per block, or 16), then both into acc.
template <Weight weight, int T, int Mins, bool Negate>
LI_INLINE void tile_block(const Panel& p, const Rows& rows, size_t first, const float* mins, size_t mins_stride,
                          float (*acc)[kPanelRows]) {
    FloatSums<T> total;
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        total(t, 0) = total(t, 1) = wide_zero();
#pragma GCC unroll 1
    for (int g = 0; g < 2 * kPanelSubs; g++) {
        WideInt sum[T][2];
        tile_dot_scaled<weight, T>(p.w[g / 2] + 4 * (g % 2), rows.q + 32 * first + 16 * g, rows.q_stride,
                                   p.scale[Mins == 16 ? g : g / 2], sum);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const WideFloat a = wide_broadcast(rows.scale + t * rows.scale_stride + 2 * first + g);
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++)
                total(t, r) = wide_fma(wide_from_int(sum[t][r]), a, total(t, r));
        }
    }
    WideFloat low[T][2];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        low[t][0] = low[t][1] = wide_zero();
#pragma GCC unroll 1
    for (int j = 0; j < Mins; j++) {
        const WideFloat min[2] = {wide_load(p.min[j]), wide_load(p.min[j] + kWideLanes)};
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const WideFloat x = wide_broadcast(mins + t * mins_stride + j);
            low[t][0] = wide_fma(min[0], x, low[t][0]);
            low[t][1] = wide_fma(min[1], x, low[t][1]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
            const WideFloat d = wide_load(p.d[0] + kWideLanes * r), m = wide_load(p.m[0] + kWideLanes * r);
            const WideFloat sum = wide_fma(d, total(t, r), wide_load(acc[t] + kWideLanes * r));
            wide_store(acc[t] + kWideLanes * r,
                            Negate ? wide_fnma(m, low[t][r], sum) : wide_fma(m, low[t][r], sum));
        }
}
