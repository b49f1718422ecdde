#include "encoder_regex.h"

#include <stdexcept>

namespace li {

bool CodePointSet::Clause::contains(uint32_t c) const {
    bool found = (categories && (categories & bit(category(c)))) || (whitespace && is_whitespace(c)) ||
                 (not_whitespace && !is_whitespace(c)) || (han && is_han(c));
    for (size_t i = 0; i < ranges.size() && !found; i++)
        found = ranges[i].first <= c && c <= ranges[i].second;
    return found != negated;
}

CodePointSet::CodePointSet(std::vector<Clause> clauses) : clauses_(std::move(clauses)) {
    for (uint32_t c = 0; c < 128; c++)
        if (contains_wide(c))
            ascii_[c >> 6] |= uint64_t{1} << (c & 63);
}

bool CodePointSet::contains_wide(uint32_t c) const {
    for (const Clause& clause : clauses_)
        if (!clause.contains(c))
            return false;
    return true;
}

// Recursive descent over the pattern, emitting instructions as it goes.
class RegexCompiler {
  public:
    RegexCompiler(Regex& regex, const std::string& pattern)
        : regex_(regex), next_(reinterpret_cast<const uint8_t*>(pattern.data())), end_(next_ + pattern.size()) {}

    void compile() {
        alternatives();
        if (next_ != end_)
            fail("an unmatched )");
        emit({Regex::Op::accept});
    }

  private:
    using Op = Regex::Op;
    using Clause = CodePointSet::Clause;

    [[noreturn]] static void fail(const char* what) { throw std::invalid_argument(what); }

    int32_t emit(Regex::Instruction instruction) {
        regex_.program_.push_back(instruction);
        return here() - 1;
    }
    int32_t here() const { return static_cast<int32_t>(regex_.program_.size()); }
    Regex::Instruction& at(int32_t pc) { return regex_.program_[pc]; }

    bool accept(char c) {
        if (next_ == end_ || *next_ != c)
            return false;
        next_++;
        return true;
    }
    bool accept(const char* text) {
        const uint8_t* p = next_;
        for (; *text; text++, p++)
            if (p == end_ || *p != *text)
                return false;
        next_ = p;
        return true;
    }
    uint32_t character() {
        if (next_ == end_)
            fail("an unfinished pattern");
        uint32_t c;
        next_ += decode_utf8(next_, end_, c);
        return c;
    }

    // a|b|c: split to a, else to (split to b, else c), each followed by a jump to the end.
    void alternatives() {
        const int32_t split = emit({Op::split});
        at(split).target = here();
        sequence();
        if (!accept('|')) {
            at(split).op = Op::jump; // only one choice
            return;
        }
        const int32_t jump = emit({Op::jump});
        at(split).other = here();
        alternatives();
        at(jump).target = here();
    }

    void sequence() {
        while (next_ != end_ && *next_ != '|' && *next_ != ')')
            item();
    }

    void item() {
        if (accept('$')) {
            emit({Op::at_end});
        } else if (accept("(?=")) {
            look(Op::look);
        } else if (accept("(?!")) {
            look(Op::look_not);
        } else if (accept("(?:") || accept('(')) {
            group();
        } else {
            single();
        }
    }

    void look(Op op) {
        const int32_t start = emit({op});
        alternatives();
        if (!accept(')'))
            fail("a missing )");
        emit({Op::accept});
        at(start).target = here();
    }

    void group() {
        // The split in front is what a repeat needs; without one it becomes a jump to the next instruction.
        const int32_t split = emit({Op::split});
        at(split).target = here();
        alternatives();
        if (!accept(')'))
            fail("a missing )");
        if (accept('*')) {
            Regex::Instruction back{Op::jump};
            back.target = split;
            emit(back);
            at(split).other = here();
        } else if (accept('+')) {
            Regex::Instruction again{Op::split};
            again.target = split;
            again.other = here() + 1;
            emit(again);
            at(split).op = Op::jump;
        } else if (accept('?')) {
            at(split).other = here();
        } else {
            at(split).op = Op::jump;
        }
    }

    void single() {
        Regex::Instruction instruction{Op::set};
        instruction.set = static_cast<int32_t>(regex_.sets_.size());
        std::vector<Clause> clauses;
        if (accept('[')) {
            bracket(clauses);
        } else {
            clauses.emplace_back();
            element(clauses.back());
        }
        regex_.sets_.emplace_back(std::move(clauses));

        instruction.op = Op::loop;
        instruction.maximum = -1;
        if (accept('*')) {
        } else if (accept('+')) {
            instruction.minimum = 1;
        } else if (accept('?')) {
            instruction.maximum = 1;
        } else if (accept('{')) {
            instruction.minimum = instruction.maximum = number();
            if (accept(','))
                instruction.maximum = number();
            if (!accept('}'))
                fail("a missing }");
        } else {
            instruction.op = Op::set;
        }
        emit(instruction);
    }

    int32_t number() {
        int32_t value = 0;
        while (next_ != end_ && *next_ >= '0' && *next_ <= '9')
            value = value * 10 + (*next_++ - '0');
        return value;
    }

    // The rest of a set after its "[", including "]"; "&&" starts a clause that must hold as well.
    void bracket(std::vector<Clause>& clauses) {
        Clause clause;
        clause.negated = accept('^');
        bool some = false;
        while (!accept(']')) {
            if (accept("&&")) {
                if (clause.negated)
                    fail("&& in a negated set");
                if (accept('[')) {
                    bracket(clauses);
                } else {
                    Clause right;
                    element(right);
                    clauses.push_back(right);
                }
                continue;
            }
            element(clause);
            some = true;
        }
        if (!some)
            fail("an empty set");
        clauses.push_back(clause);
    }

    // One character, class, or range of characters.
    void element(Clause& clause) {
        if (accept('\\')) {
            const uint32_t c = character();
            switch (c) {
            case 's': clause.whitespace = true; return;
            case 'S': clause.not_whitespace = true; return;
            case 'd': clause.categories |= bit(Nd); return;
            case 'p': property(clause); return;
            case 'r': range(clause, '\r'); return;
            case 'n': range(clause, '\n'); return;
            case 't': range(clause, '\t'); return;
            default: range(clause, c); return;
            }
        }
        range(clause, character());
    }

    void range(Clause& clause, uint32_t first) {
        uint32_t last = first;
        if (end_ - next_ >= 2 && next_[0] == '-' && next_[1] != ']') {
            next_++;
            accept('\\');
            last = character();
        }
        clause.ranges.emplace_back(first, last);
    }

    void property(Clause& clause) {
        static const struct {
            const char* name;
            uint32_t categories;
        } known[] = {
            {"{L}", kLetters},  {"{M}", kMarks},    {"{N}", kNumbers},  {"{P}", kPunctuation}, {"{S}", kSymbols},
            {"{Lu}", bit(Lu)},  {"{Ll}", bit(Ll)},  {"{Lt}", bit(Lt)},  {"{Lm}", bit(Lm)},     {"{Lo}", bit(Lo)},
        };
        if (accept("{Han}")) {
            clause.han = true;
            return;
        }
        for (const auto& row : known)
            if (accept(row.name)) {
                clause.categories |= row.categories;
                return;
            }
        fail("an unknown property");
    }

    Regex& regex_;
    const uint8_t *next_, *end_;
};

Regex::Regex(const std::string& pattern) { RegexCompiler(*this, pattern).compile(); }

Regex::Search::Search(const Regex& regex) : regex_(regex), memos_(regex.program_.size()) {}

void Regex::Search::start(const uint8_t* end) {
    end_ = end;
    memos_.assign(memos_.size(), {}); // what failed in another text may match in this one
}

Regex::Span Regex::Search::next(const uint8_t* from) {
    while (from < end_) {
        if (const uint8_t* stop = match(0, from))
            return {from, stop};
        uint32_t c;
        from += decode_utf8(from, end_, c);
    }
    return {end_, nullptr};
}

// Runs the program at `pc` on the text at `position`; returns where the match ends, or null.
const uint8_t* Regex::Search::match(int32_t pc, const uint8_t* position) {
    const size_t base = stack_.size(); // lookaheads run on top of the stack of the match that asks
    for (;;) {
        const Instruction& in = regex_.program_[pc];
        bool ok = true;
        switch (in.op) {
        case Op::set: {
            uint32_t c;
            ok = position < end_;
            if (ok) {
                const int length = decode_utf8(position, end_, c);
                ok = regex_.sets_[in.set].contains(c);
                position += length;
            }
            pc++;
            break;
        }
        case Op::loop: {
            const CodePointSet& set = regex_.sets_[in.set];
            LoopMemo& memo = memos_[pc];
            const uint8_t* least = in.minimum == 0 ? position : nullptr; // where the minimum is reached
            const uint8_t* p = position;
            int32_t count = 0;
            while (p < end_ && (in.maximum < 0 || count < in.maximum)) {
                if (least && in.maximum < 0 && memo.run_begin <= p && p < memo.run_end) {
                    p = memo.run_end; // this run was walked before
                    break;
                }
                uint32_t c;
                const int length = decode_utf8(p, end_, c);
                if (!set.contains(c))
                    break;
                p += length;
                if (++count == in.minimum)
                    least = p;
            }
            ok = least != nullptr;
            if (ok && in.maximum < 0) {
                if (memo.run_end != p) {
                    memo = {position, p, nullptr};
                } else if (memo.failed_from && memo.failed_from <= least) {
                    ok = false; // every way to go on from here was tried before
                }
            }
            if (ok) {
                stack_.push_back({pc, p, least, p});
                position = p;
            }
            pc++;
            break;
        }
        case Op::split:
            stack_.push_back({in.other, position, nullptr, nullptr});
            pc = in.target;
            break;
        case Op::jump:
            pc = in.target;
            break;
        case Op::look:
        case Op::look_not:
            ok = (match(pc + 1, position) != nullptr) == (in.op == Op::look);
            pc = in.target;
            break;
        case Op::at_end:
            ok = position == end_;
            pc++;
            break;
        case Op::accept:
            stack_.resize(base);
            return position;
        }
        if (ok)
            continue;

        // Back to the latest choice that has another way to go.
        for (;;) {
            if (stack_.size() == base)
                return nullptr;
            Frame& frame = stack_.back();
            if (!frame.stop) {
                pc = frame.pc;
                position = frame.position;
                stack_.pop_back();
                break;
            }
            if (frame.position > frame.stop) { // a loop gives back one character
                do
                    frame.position--;
                while (frame.position > frame.stop && (*frame.position & 0xC0) == 0x80);
                pc = frame.pc + 1;
                position = frame.position;
                break;
            }
            LoopMemo& memo = memos_[frame.pc];
            if (memo.run_end == frame.run_end && (!memo.failed_from || frame.stop < memo.failed_from))
                memo.failed_from = frame.stop;
            stack_.pop_back();
        }
    }
}

} // namespace li
