// A backtracking matcher for the patterns by which tokenizers split text. It knows the part of the usual syntax that
// they use (what Python's `regex` package accepts under its VERSION1 flag):
//   literals, \r \n \t, \s \S \d \p{L} \p{Lu} \p{Han} ..., sets [...] and [^...] with ranges and "&&",
//   groups (...) and (?:...), alternatives a|b (the first that matches wins), greedy ? * + {n} {m,n}
//   (the last two only after a single character or set), lookahead (?=...) (?!...), and $ (the end of the text).
#pragma once

#include "encoder_unicode.h"

#include <string>
#include <vector>

namespace li {

// A set of code points: those that satisfy every clause.
class CodePointSet {
  public:
    struct Clause {
        bool negated = false;
        uint32_t categories = 0; // of bit(Category)
        bool whitespace = false, not_whitespace = false, han = false;
        std::vector<std::pair<uint32_t, uint32_t>> ranges;
        bool contains(uint32_t code_point) const;
    };

    explicit CodePointSet(std::vector<Clause> clauses);
    bool contains(uint32_t c) const { return c < 128 ? (ascii_[c >> 6] >> (c & 63)) & 1 : contains_wide(c); }

  private:
    bool contains_wide(uint32_t code_point) const;
    std::vector<Clause> clauses_;
    uint64_t ascii_[2] = {0, 0};
};

class Regex {
  public:
    // Throws std::invalid_argument for a pattern outside the syntax above.
    explicit Regex(const std::string& pattern);

    struct Span {
        const uint8_t *begin, *end;
    };

    // Searches texts, one after the other; linear in the text for the patterns in use.
    class Search {
      public:
        explicit Search(const Regex& regex);
        void start(const uint8_t* end); // a text that ends there
        // The leftmost match that starts at or after `from`; {end, nullptr} if there is none.
        Span next(const uint8_t* from);

      private:
        struct Frame {
            int32_t pc;
            const uint8_t* position; // where to go on
            const uint8_t *stop, *run_end; // of a loop: the first position to go on from, and the last; else null
        };
        // What is known about an unbounded loop: the last run that it walked, and the position from which on, up to the
        // end of that run, going on has failed. Without it, patterns like \s+$ take quadratic time.
        struct LoopMemo {
            const uint8_t *run_begin = nullptr, *run_end = nullptr, *failed_from = nullptr;
        };
        const uint8_t* match(int32_t pc, const uint8_t* position);

        const Regex& regex_;
        const uint8_t* end_ = nullptr;
        std::vector<Frame> stack_;
        std::vector<LoopMemo> memos_;
    };

  private:
    friend class RegexCompiler;
    enum class Op : uint8_t { set, loop, split, jump, look, look_not, at_end, accept };
    struct Instruction {
        Op op;
        int32_t set = 0;             // set, loop
        int32_t minimum = 0;         // loop
        int32_t maximum = 0;         // loop; -1 is unbounded
        int32_t target = 0, other = 0; // split: first and second choice; jump; look: where to go on
    };
    std::vector<Instruction> program_;
    std::vector<CodePointSet> sets_;
};

} // namespace li
