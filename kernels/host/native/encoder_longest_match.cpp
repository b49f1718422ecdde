// Two models without merges: RWKV's (the longest token at each place) and PLaMo 2's (the cheapest cut).
#include "encoder_models.h"
#include "encoder_unicode.h"

#include <algorithm>
#include <cmath>

namespace li {

std::string unescape_rwkv(const Bytes& token) {
    std::string out;
    const auto digit = [&](uint64_t i) -> unsigned {
        const uint8_t c = i < token.size ? token.data[i] : '0';
        return c >= 'a' && c <= 'f' ? c - 'a' + 10u : c >= '0' && c <= '9' ? c - '0' + 0u : 0u;
    };
    for (uint64_t i = 0; i < token.size; i++) {
        char c = static_cast<char>(token.data[i]);
        if (c == '\\' && i + 1 < token.size) {
            c = static_cast<char>(token.data[++i]);
            if (c == 'x') {
                c = static_cast<char>(digit(i + 1) << 4 | digit(i + 2));
                i += 2;
            } else {
                c = c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : c;
            }
        }
        out.push_back(c);
    }
    return out;
}

namespace {

// Strings of our own, for the vocabulary of unescaped tokens.
struct OwnStrings {
    std::string bytes;
    std::vector<uint64_t> offsets, lengths;
    explicit OwnStrings(const Vocabulary& escaped) {
        for (int32_t id = 0; id < escaped.size(); id++) {
            const std::string token = unescape_rwkv(escaped.text(id));
            offsets.push_back(bytes.size());
            lengths.push_back(token.size());
            bytes += token;
        }
    }
    StringTable table() const {
        return {reinterpret_cast<const uint8_t*>(bytes.data()), offsets.data(), lengths.data(),
                static_cast<int32_t>(offsets.size())};
    }
};

class Rwkv : public Model {
  public:
    Rwkv(const Vocabulary& vocabulary, int32_t unknown)
        : escaped_(vocabulary), strings_(vocabulary), tokens_(strings_.table(), nullptr, nullptr),
          lengths_(tokens_, [&](int32_t id) { return vocabulary.is_plain(id); }), unknown_(unknown) {}

    void encode(const uint8_t* text, uint64_t size, bool, std::vector<int32_t>& out) const override {
        PartHashes hashes;
        hashes.assign(text, size, tokens_.longest());
        for (uint64_t i = 0; i < size;) {
            const std::vector<uint64_t>& lengths = lengths_.starting_with(text[i]);
            int32_t id = -1;
            uint64_t taken = 1;
            for (auto length = lengths.rbegin(); length != lengths.rend() && id < 0; ++length) {
                if (*length > size - i)
                    continue;
                id = tokens_.find(text + i, *length, hashes.part(i, i + *length));
                if (id >= 0 && !escaped_.is_plain(id))
                    id = -1;
                taken = *length;
            }
            if (id < 0) {
                if (unknown_ < 0)
                    throw EncodeError(std::string(reinterpret_cast<const char*>(text + i), 1));
                id = unknown_;
                taken = 1;
            }
            out.push_back(id);
            i += taken;
        }
    }

  private:
    const Vocabulary& escaped_;
    OwnStrings strings_;
    Vocabulary tokens_;
    TokenLengths lengths_;
    int32_t unknown_;
};

// Costs are integers, ten thousandths of a score, so that sums are exact. Of equal cuts, the one with the longer first
// token wins. A character without a token costs what no sum of tokens does, and is spelled in bytes.
class Plamo2 : public Model {
  public:
    explicit Plamo2(const Vocabulary& vocabulary)
        : vocabulary_(vocabulary), lengths_(vocabulary, [&](int32_t id) { return matches(id); }) {
        for (int byte = 0; byte < 256; byte++)
            if ((byte_ids_[byte] = vocabulary.byte_id(static_cast<uint8_t>(byte))) < 0)
                throw std::invalid_argument("it lacks tokens for some bytes");
    }

    void encode(const uint8_t* text, uint64_t size, bool, std::vector<int32_t>& out) const override {
        uint64_t begin = 0;
        if (size >= 3 && text[0] == 0xEF && text[1] == 0xBB && text[2] == 0xBF)
            begin = 3; // a byte order mark
        PartHashes hashes;
        hashes.assign(text, size, vocabulary_.longest());

        struct Best {
            int64_t cost;
            uint64_t next;
            int32_t id;
        };
        std::vector<Best> best(size + 1, {int64_t{1} << 60, 0, -1});
        best[size].cost = 0;
        for (uint64_t i = size; i-- > begin;) {
            if ((text[i] & 0xC0) == 0x80)
                continue;
            const auto offer = [&](uint64_t next, int32_t id, int64_t cost) {
                if (best[next].cost + cost < best[i].cost)
                    best[i] = {best[next].cost + cost, next, id};
            };
            const std::vector<uint64_t>& lengths = lengths_.starting_with(text[i]);
            for (auto length = lengths.rbegin(); length != lengths.rend(); ++length) {
                if (*length > size - i)
                    continue;
                const int32_t id = vocabulary_.find(text + i, *length, hashes.part(i, i + *length));
                if (id >= 0 && matches(id))
                    offer(i + *length, id, -std::llround(vocabulary_.score(id) * 1e4f));
            }
            offer(std::min<uint64_t>(size, i + sequence_length(text[i])), -1, kUnknownCost);
        }
        for (uint64_t i = begin; i < size; i = best[i].next) {
            if (best[i].id >= 0) {
                out.push_back(best[i].id);
                continue;
            }
            if (best[i].next <= i)
                throw EncodeError(std::string(reinterpret_cast<const char*>(text + i), 1)); // no UTF-8
            for (uint64_t byte = i; byte < best[i].next; byte++)
                out.push_back(byte_ids_[text[byte]]);
        }
    }

  private:
    static constexpr int64_t kUnknownCost = 10000000;
    static constexpr float kScoreLimit = 2e5f; // beyond, and NaN: no score

    bool matches(int32_t id) const {
        return vocabulary_.is_plain(id) && vocabulary_.type(id) != byte_token && std::fabs(vocabulary_.score(id)) < kScoreLimit;
    }

    const Vocabulary& vocabulary_;
    TokenLengths lengths_;
    int32_t byte_ids_[256];
};

} // namespace

std::unique_ptr<Model> make_rwkv(const Vocabulary& vocabulary, int32_t unknown) {
    return std::make_unique<Rwkv>(vocabulary, unknown);
}

std::unique_ptr<Model> make_plamo2(const Vocabulary& vocabulary) { return std::make_unique<Plamo2>(vocabulary); }

} // namespace li
