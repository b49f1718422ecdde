#include "encoder_vocabulary.h"

#include <algorithm>

namespace li {

void PartHashes::assign(const uint8_t* text, uint64_t size, uint64_t longest) {
    prefix_.resize(size + 1);
    prefix_[0] = 0;
    for (uint64_t i = 0; i < size; i++)
        prefix_[i + 1] = extend_hash(prefix_[i], text[i]);
    const uint64_t powers = std::min(size, longest) + 1;
    if (power_.empty())
        power_.push_back(1);
    while (power_.size() < powers)
        power_.push_back(power_.back() * kHashBase);
}

void IdTable::reserve(int32_t count) {
    uint64_t slots = 16;
    while (slots < 2 * static_cast<uint64_t>(count))
        slots *= 2;
    slots_.assign(slots, {0, -1});
    mask_ = slots - 1;
}

void IdTable::insert(uint64_t mixed_hash, int32_t id) {
    uint64_t slot = mixed_hash & mask_;
    while (slots_[slot].id >= 0)
        slot = (slot + 1) & mask_;
    slots_[slot] = {static_cast<uint32_t>(mixed_hash >> 32), id};
}

Vocabulary::Vocabulary(const StringTable& tokens, const int32_t* types, const float* scores)
    : tokens_(tokens), types_(tokens.count, normal) {
    if (types)
        for (int32_t id = 0; id < tokens.count; id++)
            types_[id] = static_cast<uint8_t>(types[id]);
    if (scores)
        scores_.assign(scores, scores + tokens.count);
    table_.reserve(tokens.count);
    for (int32_t id = 0; id < tokens.count; id++) {
        const Bytes token = tokens_[id];
        if (token.size == 0)
            continue;
        longest_ = std::max(longest_, token.size);
        table_.insert(mix_hash(hash_bytes(token.data, token.size)), id);
    }
}

int32_t Vocabulary::byte_id(uint8_t byte) const {
    constexpr char hex[] = "0123456789ABCDEF";
    const uint8_t text[] = {'<', '0', 'x', static_cast<uint8_t>(hex[byte >> 4]), static_cast<uint8_t>(hex[byte & 15]), '>'};
    return find(text, sizeof text);
}

} // namespace li
