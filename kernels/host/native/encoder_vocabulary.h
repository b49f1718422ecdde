// Tokens where a model file is mapped: nothing is copied but a hash table of their ids.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace li {

struct Bytes {
    const uint8_t* data;
    uint64_t size;
};

// A view of strings in one buffer; see StringArray in kernels/host/strings.py.
struct StringTable {
    const uint8_t* base;
    const uint64_t *offsets, *lengths;
    int32_t count;
    Bytes operator[](int32_t i) const { return {base + offsets[i], lengths[i]}; }
};

// Token types of GGUF files (`tokenizer.ggml.token_type`).
enum TokenType : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte_token = 6 };

// A polynomial hash modulo 2^64, so that the hash of any part of a text follows from those of its prefixes.
constexpr uint64_t kHashBase = 0x9E3779B97F4A7C15;
inline uint64_t extend_hash(uint64_t hash, uint8_t byte) { return hash * kHashBase + byte + 1; }
inline uint64_t hash_bytes(const uint8_t* data, uint64_t size) {
    uint64_t hash = 0;
    for (uint64_t i = 0; i < size; i++)
        hash = extend_hash(hash, data[i]);
    return hash;
}
inline uint64_t mix_hash(uint64_t h) { // the polynomial's low bits depend on the last bytes only
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93;
    return h ^ h >> 32;
}

// Hashes of the parts of one text that are no longer than `longest`.
class PartHashes {
  public:
    void assign(const uint8_t* text, uint64_t size, uint64_t longest);
    uint64_t part(uint64_t begin, uint64_t end) const { return prefix_[end] - prefix_[begin] * power_[end - begin]; }

  private:
    std::vector<uint64_t> prefix_, power_;
};

// Ids by hash: linear probing, half full at most. The caller compares what the ids stand for.
class IdTable {
  public:
    void reserve(int32_t count);
    void insert(uint64_t mixed_hash, int32_t id);
    // The first id inserted under this hash for which `matches(id)` holds, or -1.
    template <class Matches> int32_t find(uint64_t mixed_hash, Matches matches) const {
        const uint32_t check = static_cast<uint32_t>(mixed_hash >> 32);
        for (uint64_t slot = mixed_hash & mask_; slots_[slot].id >= 0; slot = (slot + 1) & mask_)
            if (slots_[slot].check == check && matches(slots_[slot].id))
                return slots_[slot].id;
        return -1;
    }

  private:
    struct Slot {
        uint32_t check;
        int32_t id;
    };
    std::vector<Slot> slots_;
    uint64_t mask_ = 0;
};

class Vocabulary {
  public:
    // `types` and `scores` are [tokens.count] or null (all normal, all 0). Both are copied, the strings are not.
    Vocabulary(const StringTable& tokens, const int32_t* types, const float* scores);

    int32_t size() const { return tokens_.count; }
    Bytes text(int32_t id) const { return tokens_[id]; }
    int32_t type(int32_t id) const { return types_[id]; }
    float score(int32_t id) const { return scores_.empty() ? 0.0f : scores_[id]; }
    void set_type(int32_t id, int32_t type) { types_[id] = static_cast<uint8_t>(type); }
    uint64_t longest() const { return longest_; } // bytes of the longest token

    int32_t find(const uint8_t* data, uint64_t size) const { return find(data, size, hash_bytes(data, size)); }
    int32_t find(const uint8_t* data, uint64_t size, uint64_t hash) const {
        if (size == 0 || size > longest_)
            return -1;
        return table_.find(mix_hash(hash), [&](int32_t id) {
            const Bytes token = tokens_[id];
            return token.size == size && std::memcmp(token.data, data, size) == 0;
        });
    }
    // The same, without the tokens that plain text must never become.
    int32_t find_plain(const uint8_t* data, uint64_t size, uint64_t hash) const {
        const int32_t id = find(data, size, hash);
        return id >= 0 && is_plain(id) ? id : -1;
    }
    bool is_plain(int32_t id) const { return types_[id] != control && types_[id] != unknown; }
    // The token <0xXX> of a byte, or -1.
    int32_t byte_id(uint8_t byte) const;

  private:
    StringTable tokens_;
    std::vector<uint8_t> types_;
    std::vector<float> scores_;
    IdTable table_;
    uint64_t longest_ = 0;
};

} // namespace li
