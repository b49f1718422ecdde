// WordPiece as BERT uses it: normalized words, each cut greedily into the longest tokens (Devlin et al. 2019,
// arXiv:1810.04805, and its tokenization.py). GGUF files spell a token that starts a word with U+2581 in front, and one
// that continues it without "##".
#include "encoder_models.h"
#include "encoder_unicode.h"

#include <algorithm>

namespace li {

namespace {

constexpr int kLongestWord = 100; // characters; BERT gives up on longer ones

bool is_ideograph(uint32_t c) { // the blocks that BERT treats so; 2B920 is what its implementations have
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_punctuation(uint32_t c) {
    return bit(category(c)) & kPunctuation || (c < 128 && bit(category(c)) & kSymbols);
}

bool is_dropped(uint32_t c) {
    return c == 0 || c == kReplacement || bit(category(c)) & (bit(Cc) | bit(Cf) | bit(Cs) | bit(Co));
}

class WordPiece : public Model {
  public:
    WordPiece(const Vocabulary& vocabulary, const WordPieceOptions& options)
        : vocabulary_(vocabulary), options_(options) {}

    void encode(const uint8_t* text, uint64_t size, bool, std::vector<int32_t>& out) const override {
        std::string word;
        int characters = 0;
        const auto finish = [&] {
            if (characters > 0)
                encode_word(word, characters, out);
            word.clear();
            characters = 0;
        };
        for (const uint8_t *p = text, *end = text + size; p < end;) {
            uint32_t c;
            p += decode_utf8(p, end, c);
            if (is_whitespace(c)) {
                finish();
                continue;
            }
            if (is_dropped(c))
                continue;
            uint32_t kept[4] = {c};
            const int count = options_.strip_accents ? unaccented(c, kept) : 1;
            const bool alone = is_ideograph(c);
            if (alone)
                finish();
            for (int i = 0; i < count; i++) {
                const bool cut = is_punctuation(kept[i]);
                if (cut)
                    finish();
                append_utf8(word, options_.lowercase ? lowercase(kept[i]) : kept[i]);
                characters++;
                if (cut)
                    finish();
            }
            if (alone)
                finish();
        }
        finish();
    }

  private:
    void encode_word(const std::string& word, int characters, std::vector<int32_t>& out) const {
        const size_t start = out.size();
        std::string rest(reinterpret_cast<const char*>(kSpaceMark), sizeof kSpaceMark);
        rest += word;
        uint64_t smallest = sizeof kSpaceMark + 1;
        while (!rest.empty() && characters <= kLongestWord) {
            const auto text = reinterpret_cast<const uint8_t*>(rest.data());
            uint64_t length = std::min<uint64_t>(rest.size(), vocabulary_.longest());
            int32_t id = -1;
            for (; length >= smallest; length--) {
                if (length < rest.size() && (text[length] & 0xC0) == 0x80)
                    continue; // within a character
                id = vocabulary_.find_plain(text, length, hash_bytes(text, length));
                if (id >= 0)
                    break;
            }
            if (id < 0)
                break;
            out.push_back(id);
            rest.erase(0, length);
            smallest = 1;
        }
        if (rest.empty())
            return;
        if (options_.unknown < 0)
            throw EncodeError(word);
        out.resize(start);
        out.push_back(options_.unknown);
    }

    const Vocabulary& vocabulary_;
    WordPieceOptions options_;
};

} // namespace

std::unique_ptr<Model> make_word_piece(const Vocabulary& vocabulary, const WordPieceOptions& options) {
    return std::make_unique<WordPiece>(vocabulary, options);
}

} // namespace li
