// SentencePiece's bpe model: the pair whose merged text has the best score merges first; bytes for what is no token.
#include "encoder_merge.h"
#include "encoder_models.h"
#include "encoder_unicode.h"

namespace li {

std::string escape_spaces(const uint8_t* text, uint64_t size, bool prefix) {
    std::string out;
    out.reserve(size + size / 2 + 3);
    const auto mark = reinterpret_cast<const char*>(kSpaceMark);
    if (prefix)
        out.append(mark, sizeof kSpaceMark);
    for (uint64_t i = 0; i < size; i++) {
        if (text[i] == ' ')
            out.append(mark, sizeof kSpaceMark);
        else
            out.push_back(static_cast<char>(text[i]));
    }
    return out;
}

namespace {

class Spm : public Model {
  public:
    Spm(const Vocabulary& vocabulary, const SpmOptions& options) : vocabulary_(vocabulary), options_(options) {
        for (int byte = 0; byte < 256; byte++)
            byte_ids_[byte] = vocabulary.byte_id(static_cast<uint8_t>(byte));
    }

    void encode(const uint8_t* text, uint64_t size, bool after_special, std::vector<int32_t>& out) const override {
        const std::string escaped = escape_spaces(text, size, options_.space_prefix && after_special);
        const auto word = reinterpret_cast<const uint8_t*>(escaped.data());
        Merger merger;
        for (uint64_t i = 0; i < escaped.size();) {
            const uint64_t end = std::min<uint64_t>(escaped.size(), i + sequence_length(word[i]));
            merger.add(static_cast<uint32_t>(i), static_cast<uint32_t>(end));
            i = end;
        }
        PartHashes hashes;
        hashes.assign(word, escaped.size(), vocabulary_.longest());
        const auto find = [&](uint32_t begin, uint32_t end) {
            return end - begin > vocabulary_.longest()
                       ? -1
                       : vocabulary_.find_plain(word + begin, end - begin, hashes.part(begin, end));
        };
        merger.merge([&](uint32_t begin, uint32_t, uint32_t end, double& cost) {
            const int32_t id = find(begin, end);
            cost = id < 0 ? 0 : -static_cast<double>(vocabulary_.score(id));
            return id >= 0;
        });
        merger.each([&](uint32_t begin, uint32_t end) {
            const int32_t id = find(begin, end);
            if (id >= 0)
                out.push_back(id);
            else
                spell(word + begin, end - begin, out);
        });
    }

  private:
    void spell(const uint8_t* character, uint64_t length, std::vector<int32_t>& out) const {
        for (uint64_t i = 0; i < length; i++) {
            if (const int32_t id = byte_ids_[character[i]]; id >= 0)
                out.push_back(id);
            else if (options_.unknown < 0)
                throw EncodeError(std::string(reinterpret_cast<const char*>(character), length));
            else if (out.empty() || out.back() != options_.unknown)
                out.push_back(options_.unknown); // one for a run of unknown characters
        }
    }

    const Vocabulary& vocabulary_;
    SpmOptions options_;
    int32_t byte_ids_[256];
};

} // namespace

std::unique_ptr<Model> make_spm(const Vocabulary& vocabulary, const SpmOptions& options) {
    return std::make_unique<Spm>(vocabulary, options);
}

} // namespace li
