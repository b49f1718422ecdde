#include "encoder_split.h"

namespace li {

namespace {

bool accept(std::string& text, const char* prefix) {
    const std::string p = prefix;
    if (text.compare(0, p.size(), p) != 0)
        return false;
    text.erase(0, p.size());
    return true;
}

// Whether a character is \w (Unicode Technical Standard 18, annex C): alphabetic ones, among them letters in circles and
// squares, marks, decimal digits, connectors and joiners.
bool is_word(uint32_t c) {
    return (bit(category(c)) & (kLetters | kMarks | bit(Nd) | bit(Nl) | bit(Pc))) != 0 || (c >= 0x24b6 && c <= 0x24e9) ||
           (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189) ||
           c == 0x200c || c == 0x200d;
}

bool word_follows(const uint8_t* position, const uint8_t* end) {
    if (position == end)
        return false;
    uint32_t c;
    decode_utf8(position, end, c);
    return is_word(c);
}

// `begin` up to `end` is a run of digits; adds the ends of its groups.
void cut_thousands(const uint8_t* begin, const uint8_t* end, std::vector<Regex::Span>& out) {
    std::vector<const uint8_t*> starts;
    for (const uint8_t* p = begin; p < end; p += sequence_length(*p))
        starts.push_back(p);
    const size_t count = starts.size();
    for (size_t i = 0; i < count;) {
        const size_t next = i + (i == 0 && count % 3 ? count % 3 : 3);
        out.push_back({starts[i], next < count ? starts[next] : end});
        i = next;
    }
}

} // namespace

Splitter::Splitter(const std::vector<std::string>& rules) {
    for (std::string rule : rules) {
        Rule made{nullptr, false, accept(rule, "thousands,word:")};
        made.thousands = made.whole_word || accept(rule, "thousands:");
        made.pattern = std::make_unique<Regex>(made.thousands ? rule + "+" : rule);
        rules_.push_back(std::move(made));
    }
}

std::vector<Regex::Span> Splitter::split(const uint8_t* begin, const uint8_t* end) const {
    std::vector<Regex::Span> pieces, cut;
    if (begin < end)
        pieces.push_back({begin, end});
    for (const Rule& rule : rules_) {
        Regex::Search search(*rule.pattern);
        cut.clear();
        for (const Regex::Span& piece : pieces) {
            search.start(piece.end);
            const uint8_t* done = piece.begin;
            while (done < piece.end) {
                Regex::Span match = search.next(done);
                if (!match.end)
                    break;
                if (rule.whole_word)
                    while (match.end && word_follows(match.end, piece.end))
                        match = search.next(match.end);
                if (!match.end)
                    break;
                if (match.begin > done)
                    cut.push_back({done, match.begin});
                if (rule.thousands)
                    cut_thousands(match.begin, match.end, cut);
                else
                    cut.push_back(match);
                done = match.end;
            }
            if (done < piece.end)
                cut.push_back({done, piece.end});
        }
        pieces.swap(cut);
    }
    return pieces;
}

} // namespace li
