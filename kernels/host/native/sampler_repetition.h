// Which token would go on with something that the text has said before: what DRY looks at.
#pragma once

#include <algorithm>
#include <cstdint>

namespace li {

struct Tokens {
    const int32_t* ids;
    int32_t count;
};

// Texts that no repetition reaches across, as sequences of tokens. Mirrored by `_Breakers` in ../sampler.py.
//
// A sequence is a first token and the tail behind it. `first` has a bit per token of the vocabulary that is the first
// of one. `pairs` [pair_count, 2] are first tokens, ascending, and where in `tails` the tail of each begins: its length,
// and its tokens. The empty tail is at 0, so that it comes first of a token's.
struct Breakers {
    const uint32_t* first;
    const int32_t* pairs;
    int32_t pair_count;
    const int32_t* tails;
    int32_t tail_count;

    bool begins_with(int32_t token) const { return first != nullptr && (first[token / 32] >> token % 32 & 1); }

    // The first pair of a token that begins a sequence; pair_count if there is none.
    int32_t pair_of(int32_t token) const {
        int32_t low = 0, high = pair_count;
        while (low < high) {
            const int32_t middle = low + (high - low) / 2;
            if (pairs[2 * middle] < token)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    bool is_one(int32_t token) const {
        if (!begins_with(token)) return false;
        const int32_t pair = pair_of(token);
        return pair < pair_count && pairs[2 * pair] == token && tail_length(pairs[2 * pair + 1]) == 0;
    }

    // Of the tail that begins there; more than any text has if it does not lie in `tails`.
    int32_t tail_length(int32_t begin) const {
        constexpr int32_t never = 0x7FFFFFFF;
        if (begin < 0 || begin >= tail_count) return never;
        const int32_t length = tails[begin];
        return length >= 0 && length < tail_count - begin ? length : never;
    }
};

// A text from its end: [0] is its last token.
struct FromEnd {
    const int32_t* end;
    int32_t count;
    int32_t operator[](int32_t i) const { return end[-1 - i]; }
};

// How many tokens stand behind the last sequence that breaks; all of them if none does.
inline int32_t unbroken(const FromEnd& text, const Breakers& breakers) {
    for (int32_t i = 0; i < text.count; ++i) {
        if (!breakers.begins_with(text[i])) continue;
        int32_t longest = -1;
        for (int32_t pair = breakers.pair_of(text[i]);
             pair < breakers.pair_count && breakers.pairs[2 * pair] == text[i]; ++pair) {
            const int32_t begin = breakers.pairs[2 * pair + 1], length = breakers.tail_length(begin);
            if (length > i || length <= longest) continue;
            int32_t same = 0;
            while (same < length && breakers.tails[begin + 1 + same] == text[i - 1 - same]) ++same;
            if (same == length) longest = length;
        }
        if (longest >= 0) return i - longest;
    }
    return text.count;
}

// For each k from 1, how many of the last tokens also stand before the last k: the Z-function of the reversed text
// (Gusfield 1997, "Algorithms on strings, trees and sequences", 1.4), in time linear in its length.
inline void repeated(const FromEnd& text, int32_t* lengths) {
    int32_t left = 0, right = 0; // text[left, right) is known to be text[0, right - left), and right is the farthest yet
    for (int32_t k = 1; k < text.count; ++k) {
        int32_t length = k < right ? std::min(lengths[k - left], right - k) : 0;
        while (k + length < text.count && text[length] == text[k + length]) ++length;
        if (k + length > right) {
            left = k;
            right = k + length;
        }
        lengths[k] = length;
    }
}

} // namespace li
