"""What an answer may look like: JSON schemas, regular expressions and grammars, through llguidance.

A `Grammar` is what was asked for. `Grammars`, one per loaded model, makes `Matcher`s of it, one per answer, which say
before every token which tokens may come next. What llguidance cannot enforce is refused with its words, never left
out: an answer that is complete always fits its grammar. Which grammar binds which part of an answer is said in
text/constraint.py.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from localinfer.errors import LocalInferError, UnsupportedError

if TYPE_CHECKING:
    from localinfer.text.tokenizer import Tokenizer

GrammarKind = Literal["json_schema", "json_object", "regex", "lark", "gbnf", "choice"]

REMEMBERED = 64  # compiled grammars per model: compiling may take a second
LONGEST = 1 << 20  # characters of a grammar
# Between the parts of JSON. A small model that may put any number of spaces there sometimes puts nothing else.
WHITESPACE = r"[ \n\r\t]{0,20}"
_NAMES = {
    "json_schema": "JSON schema",
    "json_object": "JSON grammar",
    "regex": "regular expression",
    "choice": "list of choices",
}
_ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True)
class Grammar:
    """A kind, and its text: a JSON schema, a regular expression, a grammar of Lark or GBNF, a JSON list of choices.

    "json_object" is any JSON object and has no text. LocalInferError if it makes no sense whatever the model.
    """

    kind: GrammarKind
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise LocalInferError(
                f"a grammar of kind {self.kind!r} is not known", f"known are {', '.join(get_args(GrammarKind))}"
            )
        if len(self.text) > LONGEST:
            raise LocalInferError(f"the {self.name} has {len(self.text)} characters; {LONGEST} are the most")
        if self.kind == "choice":
            choices = _decoded(self.text)
            if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
                raise LocalInferError("choices must be a list of texts, at least one, none of them empty")
        if self.kind == "json_schema" and not isinstance(_decoded(self.text), dict | bool):
            raise LocalInferError("the JSON schema must be an object")

    @property
    def name(self) -> str:
        """What a person calls it."""
        return _NAMES.get(self.kind, "grammar")


def json_schema(schema: Any) -> Grammar:
    """The grammar of a JSON schema that is given as Python objects."""
    import json

    try:
        return Grammar("json_schema", json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalInferError(f"the JSON schema cannot be written as JSON: {error}") from error


def choice(texts: Sequence[str]) -> Grammar:
    """The answer is one of these texts."""
    import json

    return Grammar("choice", json.dumps(list(texts)))


def _decoded(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LocalInferError(f"it is no JSON: {error}") from error


class GrammarFailure(LocalInferError):
    """A grammar leads nowhere: nothing fits what has come so far, or it has become too complex to go on."""


class Matcher:
    """How far one answer has come in its grammar. One thread uses it."""

    def __init__(self, matcher: Any, native: Any, vocab_size: int, name: str) -> None:
        """`native` is llguidance's vocabulary; `vocab_size` is how many logits there are."""
        self._matcher = matcher
        self._native = native
        self._bits = array("I", bytes(4 * words_of(max(native.vocab_size, vocab_size))))
        self._filled = 4 * words_of(native.vocab_size)  # bytes; no bit behind them is ever set
        self._name = name

    def allowed(self) -> array[int]:
        """A bit per token of the vocabulary, words of 32, the lowest bit first; valid until the next call.

        GrammarFailure if the grammar has become too complex to go on.
        """
        self._matcher.unsafe_compute_mask_ptr(self._bits.buffer_info()[0], self._filled)
        self._check()
        return self._bits

    def take(self, token: int) -> bool:
        """Goes on with a token, unless it does not fit; then nothing changes."""
        taken: int = self._matcher.try_consume_tokens([token])
        self._check()
        return taken == 1

    def take_text(self, text: bytes) -> bool:
        """Goes on with text in whatever tokens; where it does not fit, the matcher is of no use any more."""
        tokens = self._native.tokenize_bytes(text)
        taken: int = self._matcher.try_consume_tokens(tokens)
        return taken == len(tokens) and not self._matcher.is_error()

    @property
    def accepting(self) -> bool:
        """Whether what has come fits, perhaps with more behind it."""
        return bool(self._matcher.is_accepting())

    @property
    def complete(self) -> bool:
        """Whether what has come fits and nothing can follow it."""
        return bool(self._matcher.is_stopped())

    def copy(self) -> Matcher:
        """Another one that has come as far."""
        return Matcher(self._matcher.deep_copy(), self._native, 32 * len(self._bits), self._name)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFailure(f"the answer cannot go on by its {self._name}: {_words(self._matcher.get_error())}")


class Grammars:
    """Makes matchers for one model. Any thread may call it.

    `vocab_size` is that of the logits, which may have more places than the tokenizer has tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._native: Any = None  # llguidance's form of the vocabulary
        self._vocabulary: _Vocabulary | None = None
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()

    def matcher(self, grammar: Grammar) -> Matcher:
        """A matcher at its start. LocalInferError says what is wrong with the grammar, or not supported in it.

        The first call prepares the vocabulary, and the first for a grammar compiles it: up to a second each.
        """
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is None:
                matcher = self._compile(grammar)
                self._compiled[grammar] = matcher
                if len(self._compiled) > REMEMBERED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return Matcher(matcher.deep_copy(), self._native, self._vocab_size, grammar.name)

    def prepare(self) -> None:
        """Prepares the vocabulary ahead: seconds for a quarter of a million tokens."""
        with self._lock:
            self._prepare()

    def texts(self) -> Sequence[bytes]:
        """What each token stands for."""
        with self._lock:
            return self._prepare().tokens

    def _prepare(self) -> _Vocabulary:
        if self._vocabulary is None:
            self._vocabulary = _Vocabulary(self._tokenizer)
            self._native = self._vocabulary.native
        return self._vocabulary

    def _compile(self, grammar: Grammar) -> Any:
        from llguidance import LLMatcher

        self._prepare()
        try:
            matcher = LLMatcher(self._native, _source(grammar), log_level=0)
        except UnsupportedError as error:
            raise UnsupportedError(f"the {grammar.name} cannot be used: {error.message}") from error
        except ValueError as error:
            raise LocalInferError(f"the {grammar.name} cannot be used: {_words(str(error))}") from error
        if matcher.is_error():
            raise LocalInferError(f"the {grammar.name} cannot be used: {_words(matcher.get_error())}")
        if warnings := matcher.get_grammar_warnings():  # it would be enforced in part only
            raise LocalInferError(f"the {grammar.name} cannot be enforced in full: {_words(warnings[0])}")
        try:
            Matcher(matcher.deep_copy(), self._native, self._vocab_size, grammar.name).allowed()
        except GrammarFailure as error:
            raise LocalInferError(f"no answer fits the {grammar.name}") from error
        return matcher


def _source(grammar: Grammar) -> str:
    """The grammar as llguidance reads it."""
    from llguidance import LLMatcher, grammar_from

    if grammar.kind in ("json_schema", "json_object"):
        from localinfer.text.json_schemas import enforceable

        schema = enforceable(_decoded(grammar.text or _ANY_OBJECT))
        options: Any = {"whitespace_pattern": WHITESPACE}
        return str(LLMatcher.grammar_from_json_schema(schema, overrides=options))
    kind: Any = grammar.kind
    return str(grammar_from(kind, grammar.text))


class _Vocabulary:
    """A tokenizer as llguidance asks for it, which wants to know the tokens of a text where nothing else can come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_id if tokenizer.eos_id is not None else min(tokenizer.stop_ids, default=0)
        self.bos_token_id = tokenizer.bos_id
        ids = range(tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in ids]
        self.special_token_ids = [i for i in ids if tokenizer.is_special(i)]
        self.native: Any = None  # it asks while it is made
        self.native = LLTokenizer(TokenizerWrapper(self), eos_token=sorted(tokenizer.stop_ids) or None)

    def __call__(self, text: str | bytes) -> list[int]:
        tokens = list(self._tokenizer.encode(text, add_special=False, parse_special=False))
        spelt = text.encode() if isinstance(text, str) else text
        if b"".join(self.tokens[token] for token in tokens) == spelt:
            return tokens
        return list(self.native.greedy_tokenize(spelt.decode("utf-8", "replace")))  # a space was put in front, perhaps


def words_of(bits: int) -> int:
    """Words of 32 bits that hold so many."""
    return -(-bits // 32)


def _words(complaint: str) -> str:
    """llguidance's complaint in one line, without its state and the marks that point into the lines above them."""
    lines = [line.strip() for line in complaint.partition("<state>")[0].splitlines() if line.strip(" ^|")]
    return " ".join(lines)[:500] or "llguidance gives no reason"
