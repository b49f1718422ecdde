// Unicode properties and UTF-8, as far as tokenizers need them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace li {

// General categories (Unicode Standard, section 4.5), in the order of scripts/make_unicode_tables.py.
enum Category : uint8_t {
    Lu, Ll, Lt, Lm, Lo, Mn, Mc, Me, Nd, Nl, No, Pc, Pd, Ps, Pe, Pi, Pf, Po, Sm, Sc, Sk, So, Zs, Zl, Zp, Cc, Cf, Cs, Co, Cn
};

constexpr uint32_t bit(Category category) { return 1u << category; }
constexpr uint32_t kLetters = bit(Lu) | bit(Ll) | bit(Lt) | bit(Lm) | bit(Lo);
constexpr uint32_t kMarks = bit(Mn) | bit(Mc) | bit(Me);
constexpr uint32_t kNumbers = bit(Nd) | bit(Nl) | bit(No);
constexpr uint32_t kPunctuation = bit(Pc) | bit(Pd) | bit(Ps) | bit(Pe) | bit(Pi) | bit(Pf) | bit(Po);
constexpr uint32_t kSymbols = bit(Sm) | bit(Sc) | bit(Sk) | bit(So);

constexpr uint32_t kReplacement = 0xFFFD;

Category category(uint32_t code_point);
bool is_whitespace(uint32_t code_point); // the property White_Space
bool is_han(uint32_t code_point);        // the script
uint32_t lowercase(uint32_t code_point);

// Writes the canonical decomposition without nonspacing marks; at most 4 code points. Returns how many.
int unaccented(uint32_t code_point, uint32_t out[4]);

// Bytes of the sequence that starts with this byte; 1 for a byte that starts none.
inline int sequence_length(uint8_t lead) { return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF8 ? 4 : 1; }

// Reads one code point at `text < end` and returns its length in bytes. What is no UTF-8 reads as one byte of U+FFFD.
int decode_utf8(const uint8_t* text, const uint8_t* end, uint32_t& code_point);

void append_utf8(std::string& out, uint32_t code_point);

} // namespace li
