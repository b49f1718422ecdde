// Splitting text into the words that byte-pair encoding works on.
#pragma once

#include "encoder_regex.h"

#include <memory>

namespace li {

// Each rule cuts every piece that the rules before it left: what it matches and what lies between are pieces.
class Splitter {
  public:
    // A rule is a pattern for Regex, or `thousands:` and the pattern of one digit: runs of digits are cut in threes from
    // the right; with `thousands,word:` only runs that no letter, mark, digit or connector follows.
    // Throws std::invalid_argument.
    explicit Splitter(const std::vector<std::string>& rules);

    std::vector<Regex::Span> split(const uint8_t* begin, const uint8_t* end) const;

  private:
    struct Rule {
        std::unique_ptr<Regex> pattern;
        bool thousands, whole_word;
    };
    std::vector<Rule> rules_;
};

} // namespace li
