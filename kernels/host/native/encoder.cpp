// The C interface of the text encoder; kernels/host/encoder.py is its only caller.
#include "api.h"
#include "encoder_models.h"
#include "encoder_special.h"
#include "encoder_split.h"
#include "encoder_unicode.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>

namespace li {
namespace {

enum ModelKind : int32_t { bpe, spm, word_piece, unigram, rwkv, plamo2 };

struct Ids {
    const int32_t* data;
    int32_t count;
};

} // namespace
} // namespace li

// As _Config in encoder.py. Everything it points to must outlive the encoder.
struct li_encoder_config {
    int32_t kind, unknown;
    int32_t byte_level, escape_spaces, whole_words, whole_lines, drop_spaces, lowercase, strip_accents;
    int32_t space_prefix, merge_spaces, space_suffix;
    int32_t n_rules;
    const char* const* rules;
    li::StringTable merges;
    li::Bytes charsmap;
    li::Ids strip_left, strip_right;
};

namespace li {
namespace {

class Encoder {
  public:
    Encoder(const Vocabulary& vocabulary, const li_encoder_config& config)
        : vocabulary_(vocabulary), kind_(config.kind), byte_level_(config.byte_level != 0),
          special_(vocabulary, list(config.strip_left), list(config.strip_right)), model_(make(vocabulary, config)) {}

    std::vector<int32_t> encode(const uint8_t* text, uint64_t size, const std::vector<ByteRange>& trusted) const {
        std::vector<int32_t> out;
        uint64_t done = 0;
        bool after_special = true;
        const auto plain = [&](uint64_t end) {
            if (end > done) {
                model_->encode(text + done, end - done, after_special, out);
                after_special = false;
            }
        };
        for (const SpecialMatch& match : special_.find(text, size, trusted)) {
            plain(match.begin);
            out.push_back(match.id);
            after_special = true;
            done = match.end;
        }
        plain(size);
        return out;
    }

    // The bytes that a token stands for.
    void append_piece(int32_t id, std::string& out) const {
        const Bytes token = vocabulary_.text(id);
        const auto raw = reinterpret_cast<const char*>(token.data);
        switch (vocabulary_.type(id)) {
        case control:
        case unknown:
        case user_defined:
            out.append(raw, token.size);
            return;
        case byte_token:
            if (token.size == 6) {
                const char hex[] = {raw[3], raw[4], 0};
                out.push_back(static_cast<char>(std::strtol(hex, nullptr, 16)));
                return;
            }
        }
        if (kind_ == bpe && byte_level_)
            append_byte_level(token, out);
        else if (kind_ == rwkv)
            out += unescape_rwkv(token);
        else if (kind_ == plamo2)
            out.append(raw, token.size);
        else
            append_unescaped(token, out);
    }

    const Vocabulary& vocabulary() const { return vocabulary_; }

  private:
    static std::vector<int32_t> list(const Ids& ids) { return {ids.data, ids.data + ids.count}; }

    static std::unique_ptr<Model> make(const Vocabulary& vocabulary, const li_encoder_config& c) {
        switch (c.kind) {
        case bpe: {
            const std::vector<std::string> rules(c.rules, c.rules + c.n_rules);
            return make_bpe(vocabulary, c.merges, rules,
                            {c.byte_level != 0, c.escape_spaces != 0, c.whole_words != 0, c.whole_lines != 0,
                             c.drop_spaces != 0, c.lowercase != 0, c.unknown});
        }
        case spm:
            return make_spm(vocabulary, {c.space_prefix != 0, c.unknown});
        case word_piece:
            return make_word_piece(vocabulary, {c.lowercase != 0, c.strip_accents != 0, c.unknown});
        case unigram:
            return make_unigram(vocabulary, {c.space_prefix != 0, c.escape_spaces != 0, c.merge_spaces != 0,
                                             c.space_suffix != 0, c.unknown, c.charsmap});
        case rwkv:
            return make_rwkv(vocabulary, c.unknown);
        case plamo2:
            return make_plamo2(vocabulary);
        }
        throw std::invalid_argument("an unknown tokenizer model");
    }

    static void append_byte_level(const Bytes& token, std::string& out) {
        const size_t start = out.size();
        for (const uint8_t *p = token.data, *end = p + token.size; p < end;) {
            uint32_t c;
            p += decode_utf8(p, end, c);
            const int32_t byte = code_point_to_byte(c);
            if (byte < 0) { // not in the byte alphabet: the token means its own text
                out.resize(start);
                out.append(reinterpret_cast<const char*>(token.data), token.size);
                return;
            }
            out.push_back(static_cast<char>(byte));
        }
    }

    static void append_unescaped(const Bytes& token, std::string& out) {
        for (uint64_t i = 0; i < token.size;) {
            if (token.size - i >= 3 && std::memcmp(token.data + i, kSpaceMark, 3) == 0) {
                out.push_back(' ');
                i += 3;
            } else {
                out.push_back(static_cast<char>(token.data[i++]));
            }
        }
    }

    const Vocabulary& vocabulary_;
    int32_t kind_;
    bool byte_level_;
    SpecialTokens special_;
    std::unique_ptr<Model> model_;
};

void say(const char* what, char* error, uint64_t error_size) {
    if (error_size == 0)
        return;
    const uint64_t size = std::min<uint64_t>(std::strlen(what), error_size - 1);
    std::memcpy(error, what, size);
    error[size] = 0;
}

} // namespace
} // namespace li

// Null if there is no memory.
LI_API void* li_vocabulary_create(const uint8_t* base, const uint64_t* offsets, const uint64_t* lengths, int32_t count,
                                  const int32_t* types, const float* scores) try {
    return new li::Vocabulary({base, offsets, lengths, count}, types, scores);
} catch (const std::bad_alloc&) {
    return nullptr;
}

LI_API void li_vocabulary_destroy(void* vocabulary) { delete static_cast<li::Vocabulary*>(vocabulary); }

// The id of a token by its text, or -1.
LI_API int32_t li_vocabulary_find(const void* vocabulary, const uint8_t* text, uint64_t size) {
    return static_cast<const li::Vocabulary*>(vocabulary)->find(text, size);
}

// The type of a token, or -1 if there is no such id.
LI_API int32_t li_vocabulary_type(const void* vocabulary, int32_t id) {
    const auto v = static_cast<const li::Vocabulary*>(vocabulary);
    return id < 0 || id >= v->size() ? -1 : v->type(id);
}

// To be called before an encoder is made.
LI_API void li_vocabulary_set_type(void* vocabulary, int32_t id, int32_t type) {
    const auto v = static_cast<li::Vocabulary*>(vocabulary);
    if (id >= 0 && id < v->size())
        v->set_type(id, type);
}

// Null, and the reason in `error`, if that is impossible. The vocabulary must outlive the encoder.
LI_API void* li_encoder_create(const void* vocabulary, const li_encoder_config* config, char* error,
                               uint64_t error_size) try {
    return new li::Encoder(*static_cast<const li::Vocabulary*>(vocabulary), *config);
} catch (const std::exception& problem) {
    li::say(problem.what(), error, error_size);
    return nullptr;
}

LI_API void li_encoder_destroy(void* encoder) { delete static_cast<li::Encoder*>(encoder); }

// Encodes UTF-8 text of at most 2^29 bytes. `trusted` holds the ascending byte ranges [n_trusted, 2] within which the text
// of special tokens means the tokens. Returns how many ids there are, in an array at *ids that li_free takes back; or -1, with
// the characters that the vocabulary lacks in `error`; -2 if there is no memory; -3 if the text is too long; -4 if the
// file's normalization rules are damaged.
LI_API int64_t li_encode(const void* encoder, const uint8_t* text, uint64_t size, const uint64_t* trusted,
                         int32_t n_trusted, int32_t** ids, char* error, uint64_t error_size) try {
    if (size > uint64_t{1} << 29)
        return -3;
    std::vector<li::ByteRange> ranges;
    for (int32_t i = 0; i < n_trusted; i++)
        ranges.push_back({trusted[2 * i], std::min(trusted[2 * i + 1], size)});
    const std::vector<int32_t> out = static_cast<const li::Encoder*>(encoder)->encode(text, size, ranges);
    *ids = static_cast<int32_t*>(std::malloc(std::max<size_t>(1, out.size()) * sizeof(int32_t)));
    if (!*ids)
        return -2;
    std::copy(out.begin(), out.end(), *ids);
    return static_cast<int64_t>(out.size());
} catch (const li::EncodeError& problem) {
    li::say(problem.what(), error, error_size);
    return -1;
} catch (const std::out_of_range&) {
    return -4;
} catch (const std::exception&) {
    return -2;
}

// Writes where each word ends into `ends` [size] and returns how many words there are; -1 if a rule is no rule.
LI_API int64_t li_split(const char* const* rules, int32_t n_rules, const uint8_t* text, uint64_t size,
                        uint64_t* ends) try {
    const li::Splitter splitter(std::vector<std::string>(rules, rules + n_rules));
    int64_t count = 0;
    for (const li::Regex::Span& word : splitter.split(text, text + size))
        ends[count++] = static_cast<uint64_t>(word.end - text);
    return count;
} catch (const std::exception&) {
    return -1;
}

LI_API void li_free(void* memory) { std::free(memory); }

// The bytes that `count` tokens stand for, one after the other; with `skip_special` without control and unknown tokens.
// Writes up to `capacity` of them and returns how many there are; -1 if an id is out of range, -2 if there is no memory.
LI_API int64_t li_decode(const void* encoder, const int32_t* ids, int64_t count, int32_t skip_special, uint8_t* out,
                         uint64_t capacity) try {
    const auto e = static_cast<const li::Encoder*>(encoder);
    std::string text;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= e->vocabulary().size())
            return -1;
        if (!skip_special || e->vocabulary().is_plain(ids[i]))
            e->append_piece(ids[i], text);
    }
    std::memcpy(out, text.data(), std::min<uint64_t>(text.size(), capacity));
    return static_cast<int64_t>(text.size());
} catch (const std::bad_alloc&) {
    return -2;
}

// The tokens that hold `text`, or that end with the beginning of it: fills at most `capacity` pairs [capacity, 2] of an
// id and how many bytes of the text the token has, ascending, and returns how many there are; -2 if there is no memory.
LI_API int64_t li_meeting(const void* encoder, const uint8_t* text, uint64_t size, int32_t* pairs,
                          int64_t capacity) try {
    const auto e = static_cast<const li::Encoder*>(encoder);
    const std::string_view wanted(reinterpret_cast<const char*>(text), size);
    int64_t count = 0;
    const auto add = [&](int32_t id, uint64_t bytes) {
        if (count < capacity) {
            pairs[2 * count] = id;
            pairs[2 * count + 1] = static_cast<int32_t>(bytes);
        }
        count++;
    };
    std::string piece;
    for (int32_t id = 0; size > 0 && id < e->vocabulary().size(); id++) {
        piece.clear();
        e->append_piece(id, piece);
        const std::string_view found(piece);
        if (found.find(wanted) != found.npos) {
            add(id, size);
            continue;
        }
        for (uint64_t bytes = 1; bytes < size && bytes <= found.size(); bytes++)
            if (found.substr(found.size() - bytes) == wanted.substr(0, bytes))
                add(id, bytes);
    }
    return count;
} catch (const std::bad_alloc&) {
    return -2;
}
