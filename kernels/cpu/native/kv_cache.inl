// Keys and values in the cache's types: where they lie (see KvLayout) and how they are stored.

namespace {

using li::KvLayout;

// Where eight positions of a head begin, `position` being a multiple of eight: their keys, values and int8 scales.
struct Octet {
    const uint8_t *keys, *values;
    const float *key_scales, *value_scales;

    Octet(const KvLayout& kv, const int32_t* blocks, int head, int position) {
        const int32_t block = blocks[position >> kv.block_shift];
        const size_t slot = size_t(position) & size_t(kv.block_size - 1);
        const uint8_t *k = kv.k_block(head, block), *v = kv.v_block(head, block);
        keys = k + slot * kv.row_bytes_k;
        values = v + slot * kv.row_bytes_v;
        key_scales = (const float*)(k + kv.scales_k) + slot;
        value_scales = (const float*)(v + kv.scales_v) + slot;
    }
};

// Scale of a head's vector in int8: max|x| / 127, a value being round(x * (127 / max|x|)), ties to even. Zero where max is so
// small that the factor could overflow; a NaN for scale, so that it shows, where x is not finite.
struct Int8Scale {
    float scale = 0.0f, inverse = 0.0f;
    Int8Scale(const float* x, int n) {
        float top = 0.0f;
        bool finite = true;
        for (int i = 0; i < n; i++) {
            float magnitude = std::fabs(x[i]);
            finite = finite && magnitude < INFINITY;
            top = magnitude > top ? magnitude : top;
        }
        if (!finite)
            scale = NAN;
        else if (top >= 0x1p-119f)
            scale = top / 127.0f, inverse = 127.0f / top;
    }
};

// Stores one vector of a head: element i at index(i). `scale` is where its int8 scale goes.
template <class Index> void store_head(uint8_t* to, float* scale, int32_t type, const float* x, int n, Index index) {
    if (type == li::kKvF16) {
        for (int i = 0; i < n; i++) // clamped: an infinity times a probability of 0 would be NaN
            ((uint16_t*)to)[index(i)] = float_to_f16(x[i] > 65504.0f ? 65504.0f : x[i] < -65504.0f ? -65504.0f : x[i]);
    } else if (type == li::kKvBf16) {
        for (int i = 0; i < n; i++) ((uint16_t*)to)[index(i)] = float_to_bf16(x[i]);
    } else {
        Int8Scale s(x, n);
        *scale = s.scale;
        for (int i = 0; i < n; i++)
            ((int8_t*)to)[index(i)] = s.inverse > 0.0f ? int8_t(std::nearbyint(x[i] * s.inverse)) : int8_t(0);
    }
}

void kv_store(const KvLayout& kv, int32_t block, int32_t slot, int32_t kv_head, const float* k, const float* v) {
    const size_t at = size_t(slot), d = size_t(kv.head_dim), dv = size_t(li::padded_dim(kv.head_dim));
    uint8_t* keys = kv.k_block(kv_head, block);
    uint8_t* values = kv.v_block(kv_head, block);
    float* key_scale = (float*)(keys + kv.scales_k) + slot;
    float* value_scale = (float*)(values + kv.scales_v) + slot;
    if (kv.type_k == li::kKvInt8)
        store_head(keys + at / 8 * 8 * dv, key_scale, kv.type_k, k, kv.head_dim,
                   [=](int i) { return size_t(i) / 4 * 32 + at % 8 * 4 + size_t(i) % 4; });
    else
        store_head(keys, nullptr, kv.type_k, k, kv.head_dim,
                   [=](int i) { return at / 8 * 8 * d + size_t(i) * 8 + at % 8; });
    if (kv.type_v == li::kKvInt8)
        store_head(values, value_scale, kv.type_v, v, kv.head_dim,
                   [=](int i) { return at / 4 * 4 * dv + size_t(i) * 4 + at % 4; });
    else
        store_head(values, nullptr, kv.type_v, v, kv.head_dim, [=](int i) { return at * dv + size_t(i); });
}

} // namespace
