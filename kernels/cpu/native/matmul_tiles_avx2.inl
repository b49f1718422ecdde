// Tokens over a panel with 16 registers: the weights of 16 k stay in registers while the tokens pass one by one, sums in
// memory. Included by matmul_x86.inl; T is not used.

// 16 k of rows 8 * side ... for each token: use(t, side, q) with w in registers. Signed weights need two registers each,
// so only one side at a time fits.
template <Weight weight, class Use>
LI_INLINE void each_token(const uint8_t (*steps)[2][32], const int8_t* q, size_t q_stride, int count, Use use) {
    constexpr int kSides = weight == Weight::s8 ? 1 : 2;
#pragma GCC unroll 2
    for (int side = 0; side < 2; side += kSides) {
        __m256i w[2][4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            for (int r = 0; r < kSides; r++)
                w[r][c] = load(steps[c][side + r]);
#pragma GCC unroll 1
        for (int t = 0; t < count; t++)
            use(t, side, w, q + t * q_stride);
    }
}

template <Weight weight, bool HasMin, int T>
LI_INLINE void tile_simple(const Panel& p, int subs, const Rows& rows, size_t first, int count, float (*acc)[16]) {
    constexpr int kSides = weight == Weight::s8 ? 1 : 2;
    alignas(32) float partial[kTileTokens][16];
#pragma GCC unroll 1
    for (int s = 0; s < subs; s++) {
        const int8_t* q = rows.q + 32 * (first + s);
        const float* scale = rows.scale + 2 * (first + s);
        const float* sum32 = rows.sum32 + first + s;
        each_token<weight>(p.w[s], q, rows.q_stride, count, [&](int t, int side, const __m256i(*w)[4], const int8_t* x) {
            const __m256 a = broadcast(scale + t * rows.scale_stride);
            __m256 sum[2];
#pragma GCC unroll 2
            for (int r = 0; r < kSides; r++)
                sum[r] = _mm256_mul_ps(dot<weight>(w[r], x, nullptr), a);
#pragma GCC unroll 2
            for (int r = 0; r < kSides; r++)
                _mm256_store_ps(partial[t] + 8 * (side + r), sum[r]);
        });
        each_token<weight>(p.w[s] + 4, q + 16, rows.q_stride, count,
                           [&](int t, int side, const __m256i(*w)[4], const int8_t* x) {
            const __m256 a = broadcast(scale + t * rows.scale_stride + 1);
            __m256 sum[2];
#pragma GCC unroll 2
            for (int r = 0; r < kSides; r++)
                sum[r] = _mm256_fmadd_ps(dot<weight>(w[r], x, nullptr), a, _mm256_load_ps(partial[t] + 8 * (side + r)));
#pragma GCC unroll 2
            for (int r = 0; r < kSides; r++) {
                float* to = acc[t] + 8 * (side + r);
                __m256 total = _mm256_fmadd_ps(_mm256_load_ps(p.d[s] + 8 * (side + r)), sum[r], _mm256_load_ps(to));
                if constexpr (HasMin)
                    total = _mm256_fmadd_ps(_mm256_load_ps(p.m[s] + 8 * (side + r)),
                                            broadcast(sum32 + t * rows.sum32_stride), total);
                _mm256_store_ps(to, total);
            }
        });
    }
}

// sum[t] = fma(float(i(g) * scale(g)), a[g], sum[t]) over the 16 groups of a panel.
template <Weight weight, int ScalesPerSub>
LI_INLINE void scaled_sums(const Panel& p, const Rows& rows, size_t first, int count, float (*sum)[16]) {
    std::memset(sum, 0, sizeof sum[0] * count);
#pragma GCC unroll 1
    for (int g = 0; g < 2 * kPanelSubs; g++) {
        const uint8_t* stored = p.scale[ScalesPerSub == 2 ? g : g / 2];
        const Scale scale[2] = {load(stored), load(stored + 32)};
        const float* a = rows.scale + 2 * first + g;
        each_token<weight>(p.w[g / 2] + g % 2 * 4, rows.q + 32 * first + 16 * g, rows.q_stride, count,
                           [&](int t, int, const __m256i(*w)[4], const int8_t* x) {
            const __m256 factor = broadcast(a + t * rows.scale_stride);
            const __m256 s0 = dot_scaled<weight>(w[0], x, scale[0]), s1 = dot_scaled<weight>(w[1], x, scale[1]);
            _mm256_store_ps(sum[t], _mm256_fmadd_ps(s0, factor, _mm256_load_ps(sum[t])));
            _mm256_store_ps(sum[t] + 8, _mm256_fmadd_ps(s1, factor, _mm256_load_ps(sum[t] + 8)));
        });
    }
}

// acc = fma(d, sum, acc), then fma(±m, chain over the panel's `count` mins of min * sums, acc), per token.
template <int Mins, bool Negate>
LI_INLINE void finish_block(const Panel& p, const float* sums, size_t stride, int count, const float (*sum)[16],
                            float (*acc)[16]) {
#pragma GCC unroll 1
    for (int t = 0; t < count; t++) {
        const float* x = sums + t * stride;
        __m256 u0 = _mm256_setzero_ps(), u1 = _mm256_setzero_ps();
#pragma GCC unroll 16
        for (int j = 0; j < Mins; j++) {
            const __m256 factor = broadcast(x + j);
            u0 = _mm256_fmadd_ps(_mm256_load_ps(p.min[j]), factor, u0);
            u1 = _mm256_fmadd_ps(_mm256_load_ps(p.min[j] + 8), factor, u1);
        }
        const __m256 t0 = _mm256_fmadd_ps(_mm256_load_ps(p.d[0]), _mm256_load_ps(sum[t]), _mm256_load_ps(acc[t]));
        const __m256 t1 =
            _mm256_fmadd_ps(_mm256_load_ps(p.d[0] + 8), _mm256_load_ps(sum[t] + 8), _mm256_load_ps(acc[t] + 8));
        const __m256 m0 = _mm256_load_ps(p.m[0]), m1 = _mm256_load_ps(p.m[0] + 8);
        _mm256_store_ps(acc[t], Negate ? _mm256_fnmadd_ps(m0, u0, t0) : _mm256_fmadd_ps(m0, u0, t0));
        _mm256_store_ps(acc[t] + 8, Negate ? _mm256_fnmadd_ps(m1, u1, t1) : _mm256_fmadd_ps(m1, u1, t1));
    }
}

template <Weight weight, int T>
LI_INLINE void tile_k(const Panel& p, const Rows& rows, size_t first, int count, float (*acc)[16]) {
    alignas(32) float sum[kTileTokens][16];
    scaled_sums<weight, 1>(p, rows, first, count, sum);
    finish_block<8, true>(p, rows.sum32 + first, rows.sum32_stride, count, sum, acc);
}

template <int T>
LI_INLINE void tile_q6_k(const Panel& p, const Rows& rows, size_t first, int count, float (*acc)[16]) {
    alignas(32) float sum[kTileTokens][16];
    scaled_sums<Weight::u6, 2>(p, rows, first, count, sum);
    finish_block<16, false>(p, rows.sum16 + 2 * first, rows.scale_stride, count, sum, acc);
}
