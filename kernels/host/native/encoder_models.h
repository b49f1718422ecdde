// The tokenizer models. Each turns a piece of text without special tokens into token ids.
#pragma once

#include "encoder_vocabulary.h"

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace li {

// Text that the vocabulary has no tokens for; the message says which.
struct EncodeError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Which lengths the tokens have that start with a certain byte: what a search for tokens at one place must try.
class TokenLengths {
  public:
    // `accept(id)`: whether the token counts.
    template <class Accept> TokenLengths(const Vocabulary& vocabulary, Accept accept) {
        std::set<uint64_t> lengths[256];
        for (int32_t id = 0; id < vocabulary.size(); id++)
            if (const Bytes token = vocabulary.text(id); token.size > 0 && accept(id))
                lengths[token.data[0]].insert(token.size);
        for (int byte = 0; byte < 256; byte++)
            of_[byte].assign(lengths[byte].begin(), lengths[byte].end());
    }
    const std::vector<uint64_t>& starting_with(uint8_t byte) const { return of_[byte]; } // ascending

  private:
    std::vector<uint64_t> of_[256];
};

class Model {
  public:
    virtual ~Model() = default;
    // Appends the ids of `text`, which is UTF-8. `after_special`: it starts the text or follows a special token.
    // May run in many threads at once. Throws EncodeError.
    virtual void encode(const uint8_t* text, uint64_t size, bool after_special, std::vector<int32_t>& out) const = 0;
};

struct BpeOptions {
    bool byte_level;    // bytes stand as GPT-2's printable characters; else text as it is and <0xXX> for the rest
    bool escape_spaces; // " " becomes U+2581
    bool whole_words;   // a word that is a token stays whole, whatever the merges say
    bool whole_lines;   // the same for runs of newlines only
    bool drop_spaces, lowercase; // what does not reach the merges
    int32_t unknown;             // -1: none
};

struct SpmOptions {
    bool space_prefix;
    int32_t unknown;
};

struct WordPieceOptions {
    bool lowercase, strip_accents;
    int32_t unknown;
};

struct UnigramOptions {
    bool space_prefix, escape_spaces, merge_spaces, space_suffix;
    int32_t unknown;
    Bytes charsmap; // SentencePiece's precompiled normalization, or empty
};

// Throw std::invalid_argument when the tables or rules are unusable. `merges` are "left right", the first is merged first.
std::unique_ptr<Model> make_bpe(const Vocabulary& vocabulary, const StringTable& merges,
                                const std::vector<std::string>& split_rules, const BpeOptions& options);
std::unique_ptr<Model> make_spm(const Vocabulary& vocabulary, const SpmOptions& options);
std::unique_ptr<Model> make_word_piece(const Vocabulary& vocabulary, const WordPieceOptions& options);
std::unique_ptr<Model> make_unigram(const Vocabulary& vocabulary, const UnigramOptions& options);
std::unique_ptr<Model> make_rwkv(const Vocabulary& vocabulary, int32_t unknown);
std::unique_ptr<Model> make_plamo2(const Vocabulary& vocabulary);

// RWKV's vocabularies spell their tokens with the escapes \t \n \r \xNN, and \ before any other character.
std::string unescape_rwkv(const Bytes& token);

// The printable characters by which GPT-2's byte-level tokens stand for bytes (Radford et al. 2019, encoder.py): the code
// point of a byte, and the byte of a code point (-1 if it stands for none).
uint32_t byte_to_code_point(uint8_t byte);
int32_t code_point_to_byte(uint32_t code_point);

constexpr uint8_t kSpaceMark[] = {0xE2, 0x96, 0x81}; // U+2581
// The text with every " " as U+2581, and one more in front if asked.
std::string escape_spaces(const uint8_t* text, uint64_t size, bool prefix);

} // namespace li
