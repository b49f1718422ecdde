"""How byte-level vocabularies split text into words: one row per value of `tokenizer.ggml.pre`.

The names and flags are those that llama.cpp knows (src/llama-vocab.cpp); files in the wild carry them. The rules are
the patterns of the models' own tokenizer files; where llama.cpp approximates one because its matcher lacks a feature,
the original stands here. Syntax: kernels/host/native/encoder_regex.h and encoder_split.h.
To add a tokenizer, add a row.
"""

from __future__ import annotations

from typing import NamedTuple


class Pretokenizer(NamedTuple):
    """`rules` are applied one after the other, each to the pieces that the one before left."""

    rules: tuple[str, ...]
    whole_words: bool = False  # a word that is a token is not merged from its parts ("ignore_merges")
    add_bos: bool = False  # the default; `tokenizer.ggml.add_bos_token` overrides
    force_bos: bool = False  # not even the file's own flag overrides
    byte_level: bool = True  # tokens are spelled in GPT-2's characters for bytes; else plain UTF-8 and <0xXX>
    escape_spaces: bool = False
    whole_lines: bool = False
    drop_spaces: bool = False


_CONTRACTION = "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
_CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_GPT4O = (
    rf"{_CASED}(?:{_CONTRACTION})?|{_UPPER}(?:{_CONTRACTION})?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_TEKKEN = rf"{_CASED}|{_UPPER}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_MARKED_WORDS = rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+"
_DEEPSEEK3 = (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", rf"{_MARKED_WORDS}[\r\n]*|{_SPACES}")
_LINES = r"[^\n]+|[\n]+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_KIMI_WORD = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"

# The letters of the scripts with case, as DeepSeek LLM's tokenizer lists them. Escaped are those that editors which
# normalize text would replace by others.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-"
    "ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

_GPT2_ROW = Pretokenizer((_GPT2,))
_DIGITS_GPT2_ROW = Pretokenizer((r"\p{N}", _GPT2))
_LLAMA3_ROW = Pretokenizer((_LLAMA3,))
_QWEN2_ROW = Pretokenizer((_QWEN2,))
_GPT4O_ROW = Pretokenizer((_GPT4O,))
_DEEPSEEK3_ROW = Pretokenizer(_DEEPSEEK3)
_BAILING_ROW = Pretokenizer(
    (
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)

_ROWS: tuple[tuple[str, Pretokenizer], ...] = (
    (
        "default",
        Pretokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ),
    ("minicpm5", Pretokenizer((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), whole_words=True)),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Pretokenizer((_LLAMA3,), whole_words=True, add_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe", _LLAMA3_ROW),
    ("glm4 glm5", Pretokenizer((_LLAMA3,), whole_words=True)),
    (
        "jais-2",
        Pretokenizer(
            (
                _LLAMA3.removesuffix(_SPACES)
                + r"\s*[\r\n]+|"
                + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
                + r"|\s{1,2}(?!\S)|\s",
            )
        ),
    ),
    (
        "deepseek-llm",
        Pretokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
                r"\s+$",
                "[一-龥ࠀ-一가-퟿]+",
                r"\p{N}+",
            )
        ),
    ),
    ("deepseek-coder", Pretokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3_ROW),
    (
        "spark2_5",
        Pretokenizer((*_DEEPSEEK3[:2], rf"{_MARKED_WORDS}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")),
    ),
    (
        "youtu",
        Pretokenizer(
            (
                "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
                _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}"),
            ),
            whole_words=True,
        ),
    ),
    ("falcon", Pretokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", _DIGITS_GPT2_ROW),
    (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4 mpt olmo jais "
        "trillion granite-docling jina-v1-en jina-v2-code roberta-bpe",
        _GPT2_ROW,
    ),
    ("stablelm2 qwen2 deepseek-r1-qwen kormo f2llmv2 megrez hunyuan solar-open grok-2", _QWEN2_ROW),
    ("qwen35", Pretokenizer((_QWEN35,))),
    ("poro-chat bloom gpt3-finnish", Pretokenizer((_BLOOM,))),
    ("viking", Pretokenizer((_BLOOM, r"\p{N}"))),
    ("tekken", Pretokenizer((_TEKKEN,), whole_words=True, add_bos=True)),
    (
        "chameleon",
        Pretokenizer(
            (
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O_ROW),
    ("granite-embed-multi-97m", Pretokenizer((_GPT4O,), whole_words=True)),
    ("tiny_aya cohere2moe", Pretokenizer((r"thousands,word:\d", _GPT4O))),
    (
        "kimi-k2",
        Pretokenizer(
            (
                rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_WORD}+(?:{_CONTRACTION})?"
                rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_WORD}*(?:{_CONTRACTION})?"
                rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
            )
        ),
    ),
    ("superbpe", Pretokenizer((r"\p{N}+", r"thousands:\d"))),
    ("bailingmoe bailingmoe2 llada-moe", _BAILING_ROW),
    (
        "seed-coder",
        Pretokenizer((rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
    ),
    ("ufakzeka", Pretokenizer((_QWEN2.removeprefix(_CONTRACTION + "|"),))),
    (
        "afmoe",
        Pretokenizer(
            (
                r"thousands:\p{N}",
                "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
                _DEEPSEEK3[2],
            )
        ),
    ),
    ("laguna", Pretokenizer((_LINES, _QWEN2))),
    (
        "exaone-moe",
        Pretokenizer(
            (
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "gemma4 granite-embed-multi-311m",
        Pretokenizer((_LINES,), byte_level=False, escape_spaces=True, whole_lines=True, add_bos=True, force_bos=True),
    ),
    ("sarvam-moe", Pretokenizer((_LINES,), byte_level=False, escape_spaces=True)),
    ("whitespace", Pretokenizer((r"\S+",), byte_level=False, drop_spaces=True)),
)

PRETOKENIZERS: dict[str, Pretokenizer] = {name: row for names, row in _ROWS for name in names.split()}
