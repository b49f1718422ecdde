#include "encoder_unicode.h"

#include "encoder_unicode_tables.h"

#include <algorithm>
#include <iterator>

namespace li {

namespace {

// Nearly all text lies in the first two planes: those get a flat table.
constexpr uint32_t kFlat = 0x20000;

struct FlatCategories {
    uint8_t of[kFlat];
    FlatCategories() {
        for (size_t run = 0; run < std::size(kCategoryRuns); run++) {
            const uint32_t next = run + 1 < std::size(kCategoryRuns) ? kCategoryRuns[run + 1].first : kFlat;
            for (uint32_t c = kCategoryRuns[run].first; c < std::min(next, kFlat); c++)
                of[c] = static_cast<uint8_t>(kCategoryRuns[run].second);
        }
    }
};

// The last pair whose first is at most `code_point`, or the end.
const CodePair* last_not_above(const CodePair* begin, const CodePair* end, uint32_t code_point) {
    const CodePair* above =
        std::upper_bound(begin, end, code_point, [](uint32_t c, const CodePair& pair) { return c < pair.first; });
    return above == begin ? end : above - 1;
}

} // namespace

Category category(uint32_t code_point) {
    static const FlatCategories flat;
    if (code_point < kFlat)
        return static_cast<Category>(flat.of[code_point]);
    if (code_point > 0x10FFFF)
        return Cn;
    return static_cast<Category>(last_not_above(std::begin(kCategoryRuns), std::end(kCategoryRuns), code_point)->second);
}

bool is_whitespace(uint32_t c) {
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_han(uint32_t c) {
    const CodePair* range = last_not_above(std::begin(kHanRanges), std::end(kHanRanges), c);
    return range != std::end(kHanRanges) && c <= range->second;
}

uint32_t lowercase(uint32_t c) {
    const CodePair* pair = last_not_above(std::begin(kLowercase), std::end(kLowercase), c);
    return pair != std::end(kLowercase) && pair->first == c ? pair->second : c;
}

int unaccented(uint32_t c, uint32_t out[4]) {
    // Hangul syllables: Unicode Standard, section 3.12.
    if (c >= 0xAC00 && c <= 0xD7A3) {
        const uint32_t index = c - 0xAC00;
        out[0] = 0x1100 + index / 588;
        out[1] = 0x1161 + index % 588 / 28;
        out[2] = 0x11A7 + index % 28;
        return index % 28 ? 3 : 2;
    }
    const CodePair* last = last_not_above(std::begin(kUnaccented), std::end(kUnaccented), c);
    if (last != std::end(kUnaccented) && last->first == c) {
        const CodePair* first = last;
        while (first > std::begin(kUnaccented) && (first - 1)->first == c && last - first < 3)
            first--;
        int count = 0;
        for (; first <= last; first++)
            out[count++] = first->second;
        return count;
    }
    if (category(c) == Mn)
        return 0;
    out[0] = c;
    return 1;
}

int decode_utf8(const uint8_t* text, const uint8_t* end, uint32_t& code_point) {
    const uint8_t lead = text[0];
    code_point = lead;
    if (lead < 0x80)
        return 1;
    const int length = sequence_length(lead);
    code_point = kReplacement;
    if (length == 1 || end - text < length)
        return 1;
    uint32_t value = lead & (0x7F >> length);
    for (int i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 1;
        value = value << 6 | (text[i] & 0x3F);
    }
    constexpr uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < smallest[length] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
        return 1;
    code_point = value;
    return length;
}

void append_utf8(std::string& out, uint32_t c) {
    if (c < 0x80) {
        out.push_back(static_cast<char>(c));
        return;
    }
    const int extra = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    out.push_back(static_cast<char>((0xF00 >> (extra + 1)) | (c >> (6 * extra))));
    for (int i = extra - 1; i >= 0; i--)
        out.push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
}

} // namespace li
