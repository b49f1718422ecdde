#include "encoder_special.h"

#include <algorithm>

namespace li {

namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

bool is_ascii_space(uint8_t c) { return c == ' ' || (c >= 9 && c <= 13); }

} // namespace

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary, std::vector<int32_t> strip_left,
                             std::vector<int32_t> strip_right)
    : vocabulary_(vocabulary), strip_left_(std::move(strip_left)), strip_right_(std::move(strip_right)) {
    for (int32_t id = 0; id < vocabulary.size(); id++) {
        const int32_t type = vocabulary.type(id);
        if ((type == control || type == user_defined || type == unknown) && vocabulary.text(id).size > 0)
            sorted_.push_back(id);
    }
    std::sort(sorted_.begin(), sorted_.end(), [&](int32_t a, int32_t b) {
        const Bytes x = vocabulary_.text(a), y = vocabulary_.text(b);
        const int order = std::memcmp(x.data, y.data, std::min(x.size, y.size));
        return order ? order < 0 : x.size != y.size ? x.size < y.size : a < b;
    });
    for (const int32_t id : sorted_)
        first_[vocabulary.text(id).data[0] + 1]++;
    for (int byte = 0; byte < 256; byte++)
        first_[byte + 1] += first_[byte];
}

// Narrows the range of sorted tokens that agree with the text, byte by byte.
int32_t SpecialTokens::longest_at(const uint8_t* text, uint64_t size, uint64_t trusted_size) const {
    int32_t low = first_[text[0]], high = first_[text[0] + 1], found = -1;
    for (uint64_t depth = 1; low < high; depth++) {
        // The shortest come first: those that end here.
        for (; low < high && vocabulary_.text(sorted_[low]).size == depth; low++)
            if (depth <= trusted_size || vocabulary_.type(sorted_[low]) == user_defined)
                found = sorted_[low];
        if (depth == size)
            break;
        const auto begin = sorted_.begin();
        low = static_cast<int32_t>(std::lower_bound(begin + low, begin + high, text[depth],
                                                    [&](int32_t t, uint8_t c) { return vocabulary_.text(t).data[depth] < c; }) - begin);
        high = static_cast<int32_t>(std::upper_bound(begin + low, begin + high, text[depth],
                                                     [&](uint8_t c, int32_t t) { return c < vocabulary_.text(t).data[depth]; }) - begin);
    }
    return found;
}

std::vector<SpecialMatch> SpecialTokens::find(const uint8_t* text, uint64_t size,
                                              const std::vector<ByteRange>& trusted) const {
    std::vector<SpecialMatch> matches;
    uint64_t free = 0; // up to where text is taken
    size_t range = 0;
    for (uint64_t i = 0; i < size;) {
        while (range < trusted.size() && trusted[range].end <= i)
            range++;
        const bool trust = range < trusted.size() && trusted[range].begin <= i;
        const int32_t id = first_[text[i]] == first_[text[i] + 1]
                               ? -1
                               : longest_at(text + i, size - i, trust ? std::min(trusted[range].end, size) - i : 0);
        if (id < 0) {
            i++;
            continue;
        }
        SpecialMatch match{i, i + vocabulary_.text(id).size, id};
        if (contains(strip_left_, id))
            while (match.begin > free && is_ascii_space(text[match.begin - 1]))
                match.begin--;
        if (contains(strip_right_, id))
            while (match.end < size && is_ascii_space(text[match.end]))
                match.end++;
        matches.push_back(match);
        free = i = match.end;
    }
    return matches;
}

} // namespace li
