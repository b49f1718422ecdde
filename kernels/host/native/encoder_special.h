// Finding special tokens in text.
#pragma once

#include "encoder_vocabulary.h"

#include <vector>

namespace li {

struct ByteRange {
    uint64_t begin, end;
};

struct SpecialMatch {
    uint64_t begin, end; // with the whitespace that the token swallows
    int32_t id;
};

class SpecialTokens {
  public:
    // `strip_left` and `strip_right`: ids of tokens that swallow the whitespace before or after them.
    SpecialTokens(const Vocabulary& vocabulary, std::vector<int32_t> strip_left, std::vector<int32_t> strip_right);

    // The leftmost matches, the longest at each place. User-defined tokens match everywhere, control and unknown tokens
    // only within one of the `trusted` ranges, which are ascending.
    std::vector<SpecialMatch> find(const uint8_t* text, uint64_t size, const std::vector<ByteRange>& trusted) const;

  private:
    int32_t longest_at(const uint8_t* text, uint64_t size, uint64_t trusted_size) const;

    const Vocabulary& vocabulary_;
    std::vector<int32_t> sorted_;              // ids of special tokens by their text
    int32_t first_[257] = {};                  // where in sorted_ the tokens that start with each byte begin
    std::vector<int32_t> strip_left_, strip_right_;
};

} // namespace li
