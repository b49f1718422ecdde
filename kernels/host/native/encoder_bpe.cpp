// Byte-pair encoding over a vocabulary and ranked merges.
#include "encoder_merge.h"
#include "encoder_models.h"
#include "encoder_split.h"

namespace li {

namespace {

// Ranks of merges, found by the two texts that merge. The strings stay where they are mapped.
class Merges {
  public:
    explicit Merges(const StringTable& strings) : strings_(strings) {
        table_.reserve(strings.count);
        for (int32_t rank = 0; rank < strings.count; rank++) {
            const Bytes merge = strings_[rank];
            const uint64_t middle = space_of(merge);
            if (middle == 0 || middle + 1 == merge.size)
                continue; // names no pair
            table_.insert(key(hash_bytes(merge.data, middle),
                              hash_bytes(merge.data + middle + 1, merge.size - middle - 1)), rank);
        }
    }

    // The rank of merging [left, middle) and [middle, end) of a text, or -1.
    int32_t find(const uint8_t* text, const PartHashes& hashes, uint32_t left, uint32_t middle, uint32_t end) const {
        const uint64_t left_size = middle - left, size = end - left;
        return table_.find(key(hashes.part(left, middle), hashes.part(middle, end)), [&](int32_t rank) {
            const Bytes merge = strings_[rank];
            return merge.size == size + 1 && merge.data[left_size] == ' ' &&
                   std::memcmp(merge.data, text + left, left_size) == 0 &&
                   std::memcmp(merge.data + left_size + 1, text + middle, size - left_size) == 0;
        });
    }

    // Bytes of the longest merge with its space: more than the merged text has.
    static uint64_t longest(const StringTable& strings) {
        uint64_t longest = 0;
        for (int32_t rank = 0; rank < strings.count; rank++)
            longest = std::max(longest, strings[rank].size);
        return longest;
    }

  private:
    // The space that separates the two texts; the first of them may itself start with one.
    static uint64_t space_of(const Bytes& merge) {
        if (merge.size < 3)
            return 0;
        const void* space = std::memchr(merge.data + 1, ' ', merge.size - 1);
        return space ? static_cast<const uint8_t*>(space) - merge.data : 0;
    }
    static uint64_t key(uint64_t left, uint64_t right) { return mix_hash(left * 3 + right); }

    StringTable strings_;
    IdTable table_;
};

struct ByteAlphabet {
    uint32_t code_points[256];
    int16_t bytes[324];
    ByteAlphabet() {
        std::fill(std::begin(bytes), std::end(bytes), int16_t{-1});
        uint32_t next = 256;
        for (int b = 0; b < 256; b++) {
            const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
            code_points[b] = printable ? b : next++;
            bytes[code_points[b]] = static_cast<int16_t>(b);
        }
    }
};

const ByteAlphabet& alphabet() {
    static const ByteAlphabet made;
    return made;
}

class Bpe : public Model {
  public:
    Bpe(const Vocabulary& vocabulary, const StringTable& merges, const std::vector<std::string>& split_rules,
        const BpeOptions& options)
        : vocabulary_(vocabulary), merges_(merges), splitter_(split_rules), options_(options),
          longest_(std::max(vocabulary.longest(), Merges::longest(merges))) {}

    void encode(const uint8_t* text, uint64_t size, bool, std::vector<int32_t>& out) const override {
        Scratch scratch;
        std::string changed;
        if (options_.lowercase || options_.escape_spaces) {
            changed = options_.escape_spaces ? escape_spaces(text, size, false) : lowered(text, size);
            text = reinterpret_cast<const uint8_t*>(changed.data());
            size = changed.size();
        }
        for (const Regex::Span& word : splitter_.split(text, text + size))
            if (!(options_.drop_spaces && blank(word)))
                encode_word(word.begin, word.end - word.begin, scratch, out);
    }

  private:
    struct Scratch {
        std::string mapped;
        PartHashes hashes;
        Merger merger;
    };

    static std::string lowered(const uint8_t* text, uint64_t size) {
        std::string out;
        for (const uint8_t *p = text, *end = text + size; p < end;) {
            uint32_t c;
            p += decode_utf8(p, end, c);
            append_utf8(out, lowercase(c));
        }
        return out;
    }

    static bool blank(const Regex::Span& word) {
        for (const uint8_t* p = word.begin; p < word.end;) {
            uint32_t c;
            p += decode_utf8(p, word.end, c);
            if (!is_whitespace(c))
                return false;
        }
        return true;
    }

    void encode_word(const uint8_t* word, uint64_t size, Scratch& scratch, std::vector<int32_t>& out) const {
        if (options_.byte_level) {
            scratch.mapped.clear();
            for (uint64_t i = 0; i < size; i++)
                append_utf8(scratch.mapped, byte_to_code_point(word[i]));
            word = reinterpret_cast<const uint8_t*>(scratch.mapped.data());
            size = scratch.mapped.size();
        }
        if (options_.whole_words || (options_.whole_lines && word[0] == '\n')) {
            const int32_t id = size <= longest_ ? vocabulary_.find_plain(word, size, hash_bytes(word, size)) : -1;
            if (id >= 0) {
                out.push_back(id);
                return;
            }
        }
        Merger& merger = scratch.merger;
        merger.clear();
        for (uint64_t i = 0; i < size;) {
            const uint64_t end = std::min(size, i + sequence_length(word[i]));
            merger.add(static_cast<uint32_t>(i), static_cast<uint32_t>(end));
            i = end;
        }
        scratch.hashes.assign(word, size, longest_);
        merger.merge([&](uint32_t begin, uint32_t middle, uint32_t end, double& cost) {
            if (end - begin >= longest_)
                return false; // no merge is that long; nor are there hashes of such parts
            const int32_t rank = merges_.find(word, scratch.hashes, begin, middle, end);
            cost = rank;
            return rank >= 0;
        });
        merger.each([&](uint32_t begin, uint32_t end) {
            const int32_t id = end - begin > longest_
                                   ? -1
                                   : vocabulary_.find_plain(word + begin, end - begin, scratch.hashes.part(begin, end));
            if (id >= 0)
                out.push_back(id);
            else
                spell(word + begin, word + end, out);
        });
    }

    // A symbol that is no token: its characters, and their bytes where even those are none.
    void spell(const uint8_t* text, const uint8_t* end, std::vector<int32_t>& out) const {
        while (text < end) {
            const uint64_t length = std::min<uint64_t>(end - text, sequence_length(*text));
            const int32_t id = vocabulary_.find_plain(text, length, hash_bytes(text, length));
            if (id >= 0) {
                out.push_back(id);
            } else {
                for (uint64_t i = 0; i < length; i++)
                    spell_byte(text, length, i, out);
            }
            text += length;
        }
    }

    void spell_byte(const uint8_t* character, uint64_t length, uint64_t i, std::vector<int32_t>& out) const {
        const int32_t id = options_.byte_level ? -1 : vocabulary_.byte_id(character[i]);
        if (id >= 0)
            out.push_back(id);
        else if (options_.unknown < 0)
            throw EncodeError(meaning(character, length));
        else if (i == 0)
            out.push_back(options_.unknown); // one for the character
    }

    // What a character of the vocabulary's spelling stands for.
    std::string meaning(const uint8_t* character, uint64_t length) const {
        uint32_t c;
        decode_utf8(character, character + length, c);
        if (options_.byte_level && code_point_to_byte(c) >= 0)
            return std::string(1, static_cast<char>(code_point_to_byte(c)));
        return std::string(reinterpret_cast<const char*>(character), length);
    }

    const Vocabulary& vocabulary_;
    Merges merges_;
    Splitter splitter_;
    BpeOptions options_;
    uint64_t longest_;
};

} // namespace

uint32_t byte_to_code_point(uint8_t byte) { return alphabet().code_points[byte]; }

int32_t code_point_to_byte(uint32_t code_point) { return code_point < 324 ? alphabet().bytes[code_point] : -1; }

std::unique_ptr<Model> make_bpe(const Vocabulary& vocabulary, const StringTable& merges,
                                const std::vector<std::string>& split_rules, const BpeOptions& options) {
    return std::make_unique<Bpe>(vocabulary, merges, split_rules, options);
}

} // namespace li
