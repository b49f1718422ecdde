// Tables of length-prefixed strings, as GGUF metadata holds vocabularies.
#include "api.h"

#include <cstdint>
#include <cstring>

// Walks `count` strings, each a little-endian uint64 length and that many bytes, from `begin` in a buffer of `size`
// bytes. Writes where the bytes of each start and how many there are. Returns the position after the last string.
// If string i does not fit in the buffer, returns -1 - i and offsets[i] is the position of its length field.
LI_API int64_t li_scan_strings(const uint8_t* buffer, uint64_t size, uint64_t begin, uint64_t count, uint64_t* offsets,
                               uint64_t* lengths) {
    uint64_t position = begin;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t length = 0;
        const bool has_length = position <= size && size - position >= sizeof length;
        if (has_length)
            std::memcpy(&length, buffer + position, sizeof length);
        if (!has_length || length > size - position - sizeof length) {
            offsets[i] = position;
            return -1 - static_cast<int64_t>(i);
        }
        offsets[i] = position + sizeof length;
        lengths[i] = length;
        position = offsets[i] + length;
    }
    return static_cast<int64_t>(position);
}
