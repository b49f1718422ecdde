// The unigram language model (Kudo 2018, arXiv:1804.10959): of all ways to cut a text into tokens, the one with the
// greatest sum of log probabilities, found by dynamic programming (Viterbi).
#include "encoder_models.h"
#include "encoder_unicode.h"

#include <algorithm>
#include <cfloat>

namespace li {

namespace {

constexpr float kUnknownPenalty = 10.0f; // below the worst token, as in SentencePiece

// SentencePiece's precompiled normalization: a double-array trie from texts to replacements. The blob holds the size of
// the array in bytes, the array of uint32, and the replacements, each ending with a zero byte. Bits of a unit: 0-7 its
// byte, 8 whether a replacement ends here, 9 whether the offset counts in 256s, 10-30 the offset, 31 set in the unit
// that holds a replacement's position (darts-clone, double-array trie).
class Charsmap {
  public:
    explicit Charsmap(const Bytes& blob) {
        if (blob.size == 0)
            return;
        uint32_t trie_bytes = 0;
        if (blob.size < sizeof trie_bytes)
            throw std::invalid_argument("its normalization rules are cut short");
        std::memcpy(&trie_bytes, blob.data, sizeof trie_bytes);
        if (trie_bytes > blob.size - sizeof trie_bytes || trie_bytes % sizeof(uint32_t))
            throw std::invalid_argument("its normalization rules are cut short");
        units_.resize(trie_bytes / sizeof(uint32_t));
        std::memcpy(units_.data(), blob.data + sizeof trie_bytes, trie_bytes);
        texts_.assign(reinterpret_cast<const char*>(blob.data) + sizeof trie_bytes + trie_bytes,
                      blob.size - sizeof trie_bytes - trie_bytes);
    }

    // The longest text with a rule at the start of [text, end): its length and replacement; 0 if there is none.
    uint64_t longest(const uint8_t* text, const uint8_t* end, std::string& replacement) const {
        uint64_t length = 0;
        uint32_t position = 0, node = offset(unit(0));
        for (const uint8_t* p = text; p < end && *p != 0 && !units_.empty(); p++) {
            node ^= *p;
            const uint32_t found = unit(node);
            if ((found & (0xFF | 1u << 31)) != *p)
                break;
            node ^= offset(found);
            if (found >> 8 & 1) {
                length = p - text + 1;
                position = unit(node) & ~(1u << 31);
            }
        }
        if (length > 0) {
            const size_t stop = position < texts_.size() ? texts_.find('\0', position) : std::string::npos;
            if (stop == std::string::npos)
                throw std::out_of_range("normalization rules");
            replacement.assign(texts_, position, stop - position);
        }
        return length;
    }

  private:
    static uint32_t offset(uint32_t unit) { return (unit >> 10 & 0x1FFFFF) << ((unit >> 9 & 1) * 8); }
    // Damaged rules lead outside: a unit that matches no byte.
    uint32_t unit(uint32_t index) const { return index < units_.size() ? units_[index] : 1u << 31; }

    std::vector<uint32_t> units_;
    std::string texts_;
};

class Unigram : public Model {
  public:
    Unigram(const Vocabulary& vocabulary, const UnigramOptions& options)
        : vocabulary_(vocabulary), options_(options), charsmap_(options.charsmap),
          lengths_(vocabulary, [&](int32_t id) { return matches(id); }) {
        float worst = FLT_MAX;
        for (int32_t id = 0; id < vocabulary.size(); id++)
            if (vocabulary.type(id) == normal)
                worst = std::min(worst, vocabulary.score(id));
        unknown_score_ = worst - kUnknownPenalty;
    }

    void encode(const uint8_t* text, uint64_t size, bool, std::vector<int32_t>& out) const override {
        const std::string normalized = normalize(text, text + size);
        const auto begin = reinterpret_cast<const uint8_t*>(normalized.data());
        const uint64_t end = normalized.size();
        PartHashes hashes;
        hashes.assign(begin, end, vocabulary_.longest());

        struct Best {
            double score;
            uint64_t from;
            int32_t id;
        };
        std::vector<Best> best(end + 1, {-DBL_MAX, 0, -1});
        best[0].score = 0;
        const auto offer = [&](uint64_t from, uint64_t to, int32_t id, double score) {
            if (best[from].score + score > best[to].score)
                best[to] = {best[from].score + score, from, id};
        };
        for (uint64_t i = 0; i < end;) {
            const uint64_t character = std::min<uint64_t>(end - i, sequence_length(begin[i]));
            bool whole_character = false;
            for (const uint64_t length : lengths_.starting_with(begin[i])) {
                if (length > end - i)
                    break;
                const int32_t id = vocabulary_.find(begin + i, length, hashes.part(i, i + length));
                if (id < 0 || !matches(id))
                    continue;
                whole_character = whole_character || length == character;
                offer(i, i + length, id, vocabulary_.type(id) == user_defined ? 0.0 : vocabulary_.score(id));
            }
            if (!whole_character)
                offer(i, i + character, -1, unknown_score_);
            i += character;
        }

        const size_t start = out.size();
        bool was_unknown = false;
        for (uint64_t i = end; i > 0; i = best[i].from) {
            const bool is_unknown = best[i].id < 0;
            if (is_unknown && options_.unknown < 0)
                throw EncodeError(normalized.substr(best[i].from, i - best[i].from));
            if (!is_unknown)
                out.push_back(best[i].id);
            else if (!was_unknown)
                out.push_back(options_.unknown); // one for a run of unknown characters
            was_unknown = is_unknown;
        }
        std::reverse(out.begin() + start, out.end());
    }

  private:
    bool matches(int32_t id) const {
        const int32_t type = vocabulary_.type(id);
        return type == normal || type == user_defined || type == unused;
    }

    std::string normalize(const uint8_t* text, const uint8_t* end) const {
        const std::string space = options_.escape_spaces
                                      ? std::string(reinterpret_cast<const char*>(kSpaceMark), sizeof kSpaceMark)
                                      : " ";
        const bool prefix = options_.space_prefix && !options_.space_suffix;
        std::string out, replacement;
        bool prefixed = false, in_word = false;
        while (text < end) {
            uint64_t length = charsmap_.longest(text, end, replacement);
            if (length == 0) {
                uint32_t c;
                length = decode_utf8(text, end, c);
                replacement.clear();
                append_utf8(replacement, c);
            }
            text += length;
            for (const char c : replacement) {
                if (c == ' ') {
                    in_word = false;
                    if (!options_.merge_spaces)
                        out += space;
                    continue;
                }
                if (!in_word && ((prefix && !prefixed) || options_.merge_spaces)) {
                    out += space;
                    prefixed = true;
                }
                in_word = true;
                out.push_back(c);
            }
        }
        if (options_.space_prefix && options_.space_suffix)
            out += space;
        return out;
    }

    const Vocabulary& vocabulary_;
    UnigramOptions options_;
    Charsmap charsmap_;
    TokenLengths lengths_;
    float unknown_score_;
};

} // namespace

std::unique_ptr<Model> make_unigram(const Vocabulary& vocabulary, const UnigramOptions& options) {
    return std::make_unique<Unigram>(vocabulary, options);
}

} // namespace li
