"""What binds an answer, part by part: its thought, its calls of tools, and what it says.

A `Constraint` stands beside one answer and is told every token. It is always in one *stage*: in some nothing is bound,
and a mark is looked for in the text (the end of a thought, the beginning of a call); in some one token is forced; in
others a grammar says what may come. So a grammar of the answer does not bind the thought before it, and the arguments
of a call fit their schema although text around it is free, which costs nothing.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from localinfer.errors import LocalInferError
from localinfer.text.grammar import Grammar, Grammars, Matcher, words_of
from localinfer.text.tool_format import CHANNEL_MARKS

if TYPE_CHECKING:
    from localinfer.text.tokenizer import Tokenizer
    from localinfer.text.tool_format import ReasoningFormat

LINE_END = "\n"  # in front of the mark that closes a thought: models put it there
_BARE_CALL = re.compile(rb'\{\s*"')
_BARE_CALL_BEGUN = re.compile(rb"(\{\s*)?")


@dataclass(frozen=True)
class Thought:
    """How the model marks what it thinks, and where the prompt leaves it.

    "begun": the prompt has opened a thought. "possible": the answer may open one. "over": it has none, or the prompt
    holds it. "answering": not even the mark of what the model says, if it has one, is wanted.
    """

    marks: ReasoningFormat
    state: Literal["begun", "possible", "over", "answering"]


def thought_behind(marks: ReasoningFormat, text: str) -> Thought:
    """Where a prompt that ends with this text leaves the model's thinking."""
    text = text.rstrip()
    if text.endswith(marks.open):
        return Thought(marks, "begun")
    if marks.answer_open and text.endswith(marks.answer_open):
        return Thought(marks, "answering")
    if not marks.channels and text.endswith((marks.close, f"{marks.close}{marks.after}".rstrip())):
        return Thought(marks, "over")
    return Thought(marks, "possible")


@dataclass(frozen=True)
class CallBounds:
    """What binds the calls of tools in an answer.

    `grammar` holds from `trigger` on (which is part of it); "" is for calls that are an object without a mark, and the
    whole answer, perhaps behind marks of `also`. Behind them text is free again, unless they are to be the end
    (`last`). The answer need not have any, unless that is `forced`.
    """

    trigger: str
    grammar: Grammar
    last: bool = False
    forced: bool = False
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """All that binds an answer: behind a thought of at most `thinking_budget` tokens it fits `grammar`, or is calls."""

    grammar: Grammar | None = None
    calls: CallBounds | None = None
    thought: Thought | None = None
    thinking_budget: int | None = None


class Constraint(Protocol):
    """What the next token of one answer may be. One thread uses it."""

    def allowed(self) -> array[int] | None:
        """A bit per token of the vocabulary, words of 32, the lowest bit first; valid until the next call.

        None: any token. LocalInferError if a grammar has become too complex to go on.
        """
        ...

    def accept(self, token: int) -> None:
        """The token was drawn from those that are allowed."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the answer fits and nothing can follow it."""
        ...


class Constraints:
    """Makes constraints for one model with so many logits. Any thread may call it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._grammars = Grammars(tokenizer, vocab_size)
        self._tokens = _Tokens(tokenizer, vocab_size, self._grammars.texts)

    def constraint(self, bounds: Bounds) -> Constraint:
        """A constraint at its start. LocalInferError says what is wrong with a grammar, or not supported in it.

        The first call with a grammar prepares the vocabulary, and the first for a grammar compiles it: up to a second
        each.
        """
        return _Staged(_Plan(bounds, self._grammars, self._tokens).first())

    def prepare(self) -> None:
        """Prepares the vocabulary ahead."""
        self._grammars.prepare()


class _Stage(Protocol):
    """A part of an answer. `accept` gives the stage that follows, `feed` too, for text that no token stands for."""

    @property
    def complete(self) -> bool: ...

    def allowed(self) -> array[int] | None: ...

    def accept(self, token: int) -> _Stage: ...

    def feed(self, text: bytes) -> _Stage: ...


_Next = Callable[[], _Stage]


class _Staged:
    """A constraint that goes from stage to stage."""

    def __init__(self, stage: _Stage) -> None:
        self._stage = stage

    def allowed(self) -> array[int] | None:
        return self._stage.allowed()

    def accept(self, token: int) -> None:
        self._stage = self._stage.accept(token)

    @property
    def complete(self) -> bool:
        return self._stage.complete


class _Plan:
    """The stages of one answer, made when they are reached."""

    def __init__(self, bounds: Bounds, grammars: Grammars, tokens: _Tokens) -> None:
        self._bounds = bounds
        self._tokens = tokens
        self._thought, self._calls = bounds.thought, bounds.calls
        self._grammar = None if bounds.grammar is None else grammars.matcher(bounds.grammar)
        self._call_matcher = None if bounds.calls is None else grammars.matcher(bounds.calls.grammar)
        self._bound = bounds.grammar is not None or (bounds.calls is not None and bounds.calls.forced)
        self._open = self._answer_open = None
        if self._bound and self._thought is not None:
            marks, state = self._thought.marks, self._thought.state
            if state == "possible" and bounds.thinking_budget != 0:
                self._open = grammars.matcher(tokens.literal(marks.open))
            if state != "answering" and marks.answer_open:
                self._answer_open = grammars.matcher(tokens.literal(marks.answer_open))

    def first(self) -> _Stage:
        state = "over" if self._thought is None else self._thought.state
        if state == "begun":
            return self._thinking()
        if state == "possible" and not self._bound:
            assert self._thought is not None
            return _Opening(self._tokens, self._thought.marks.open.encode(), self._thinking, self._body)
        return self._body(self._open)

    def _thinking(self) -> _Stage:
        assert self._thought is not None
        marks, budget = self._thought.marks, self._bounds.thinking_budget
        closing = f"{'' if marks.channels else LINE_END}{marks.close}{marks.after}"
        forced = self._tokens.encode(closing)
        if budget == 0:
            return _Forced(self._tokens, forced, self._body)
        after = self._tokens.encode(marks.after) if self._bound else []
        others = [mark for mark in CHANNEL_MARKS if mark != marks.close] if marks.channels else []
        never = self._tokens.ending | self._tokens.special(others) if self._bound else None
        return _Thinking(self._tokens, marks.close.encode(), budget, forced, self._body, after, never)

    def _body(self, opening: Matcher | None = None) -> _Stage:
        """What follows the thought, which may be opened here still."""
        if not self._bound:
            return self._calls_or_text()
        parts = [] if opening is None else [_Part(opening.copy(), self._thinking)]
        if self._grammar is not None and self._answer_open is not None:
            parts.append(_Part(self._answer_open.copy(), self._answer))
        elif self._grammar is not None:
            parts.append(_Part(self._grammar.copy(), None))
        if self._call_matcher is not None:
            parts.append(_Part(self._call_matcher.copy(), None))
        return _Bound(self._tokens, parts)

    def _answer(self) -> _Stage:
        assert self._grammar is not None
        return _Bound(self._tokens, [_Part(self._grammar.copy(), None)])

    def _calls_or_text(self) -> _Stage:
        if self._calls is None or self._call_matcher is None:
            return _Free()
        if self._calls.trigger:
            after = None if self._calls.last else self._calls_or_text
            return _Calls(self._tokens, self._calls.trigger.encode(), self._call_matcher, after)
        also = [mark.encode() for mark in self._calls.also]
        return _BareCalls(self._tokens, also, self._call_matcher, None if self._calls.last else _Free)


class _Free:
    """Nothing is bound, to the end."""

    complete = False

    def allowed(self) -> array[int] | None:
        return None

    def accept(self, token: int) -> _Stage:
        return self

    def feed(self, text: bytes) -> _Stage:
        return self


class _Forced:
    """Tokens that come one after the other."""

    complete = False

    def __init__(self, tokens: _Tokens, forced: Sequence[int], following: _Next) -> None:
        self._tokens = tokens
        self._left = list(forced)
        self._following = following

    def allowed(self) -> array[int] | None:
        return self._tokens.only(self._left[0])

    def accept(self, token: int) -> _Stage:
        self._left.pop(0)
        return self if self._left else self._following()

    def feed(self, text: bytes) -> _Stage:
        return self


class _Thinking:
    """A thought, up to the mark that closes it; after `budget` tokens (None: any number) the mark is forced.

    If what follows is bound, the thought has none of the tokens in `never` (a bit each), nothing but white space may
    stand behind the mark in its last token, and the tokens that the model learned to be there, `after`, are forced.
    """

    complete = False

    def __init__(
        self,
        tokens: _Tokens,
        close: bytes,
        budget: int | None,
        forced: Sequence[int],
        following: _Next,
        after: Sequence[int],
        never: int | None,
    ) -> None:
        self._tokens = tokens
        self._mark = _Mark(close)
        self._left = budget
        self._forced = forced
        self._following = following
        self._after = after
        self._never = never

    def allowed(self) -> array[int] | None:
        if self._never is None:
            return None
        banned = self._never
        for begun in self._mark.begun():
            banned |= self._tokens.going_beyond(begun.rest, white=False)
        return self._tokens.all_but(banned)

    def accept(self, token: int) -> _Stage:
        found = self._mark.push(self._tokens.text(token), token)
        if found is not None:
            behind = b"".join(piece.text for piece in found)[len(self._mark.text) :]
            if self._after and not behind:
                return _Forced(self._tokens, self._after, self._following)
            return self._following().feed(behind)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                return _Forced(self._tokens, self._forced, self._following)
        return self

    def feed(self, text: bytes) -> _Stage:
        self._mark.push(text, None)
        return self


class _Opening:
    """The beginning of an answer that is not bound: perhaps it thinks first."""

    complete = False

    def __init__(self, tokens: _Tokens, mark: bytes, thinking: _Next, body: _Next) -> None:
        self._tokens = tokens
        self._mark = mark
        self._thinking, self._body = thinking, body
        self._text = b""
        self._seen: list[int] = []

    def allowed(self) -> array[int] | None:
        return None

    def accept(self, token: int) -> _Stage:
        self._seen.append(token)
        self._text += self._tokens.text(token)
        begun = self._text.lstrip()
        if begun.startswith(self._mark):
            return self._thinking().feed(begun[len(self._mark) :])
        if self._mark.startswith(begun):
            return self
        stage = self._body()
        for seen in self._seen:
            stage = stage.accept(seen)
        return stage

    def feed(self, text: bytes) -> _Stage:
        self._text += text
        return self


class _Part(NamedTuple):
    """One of the things that may come, and what comes behind it: None is the end of the answer."""

    matcher: Matcher
    following: _Next | None


class _Bound:
    """One of several grammars holds, or all that agree so far."""

    def __init__(self, tokens: _Tokens, parts: Sequence[_Part]) -> None:
        self._tokens = tokens
        self._parts = parts

    @property
    def complete(self) -> bool:
        return all(part.matcher.complete for part in self._parts)

    def allowed(self) -> array[int] | None:
        if len(self._parts) == 1 and self._parts[0].following is None:
            return self._parts[0].matcher.allowed()
        union = 0
        for matcher, following in self._parts:
            may = _as_number(matcher.allowed())
            if following is not None and matcher.accepting:  # it may go on, and so may what follows, but not end here
                behind = following().allowed()
                if behind is None:
                    return None
                may = may & ~self._tokens.ending | _as_number(behind)
            union |= may
        return _as_bits(union, len(self._parts[0].matcher.allowed()))

    def accept(self, token: int) -> _Stage:
        behind = next((following for matcher, following in self._parts if following and matcher.accepting), None)
        left = [part for part in self._parts if part.matcher.take(token)]
        if not left:
            if behind is None:
                raise LocalInferError(f"the answer cannot go on with token {token}")
            return behind().accept(token)
        for part in left:
            if part.matcher.complete and part.following is not None:
                return part.following()
        self._parts = left
        return self

    def feed(self, text: bytes) -> _Stage:
        return self  # white space, at most: see _Thinking


class _Calls:
    """Nothing is bound until the trigger of a call has come; then its grammar holds."""

    complete = False

    def __init__(self, tokens: _Tokens, trigger: bytes, calls: Matcher, after: _Next | None) -> None:
        self._tokens = tokens
        self._mark = _Mark(trigger)
        self._calls = calls
        self._after = after

    def allowed(self) -> array[int] | None:
        banned = 0
        for begun in self._mark.begun():  # a token that ends the trigger may go beyond it, but not against the grammar
            if beyond := self._tokens.going_beyond(begun.rest):
                matcher = self._calls.copy()
                banned |= beyond & ~(_as_number(matcher.allowed()) if _taken(matcher, begun.pieces) else 0)
        return self._tokens.all_but(banned) if banned else None

    def accept(self, token: int) -> _Stage:
        return self._go_on(self._mark.push(self._tokens.text(token), token))

    def feed(self, text: bytes) -> _Stage:
        return self._go_on(self._mark.push(text, None))

    def _go_on(self, found: list[_Piece] | None) -> _Stage:
        if found is None:
            return self
        matcher = self._calls.copy()
        return _entered(self._tokens, matcher, self._after) if _taken(matcher, found) else self


class _BareCalls:
    """An answer that begins like an object is a call; any other is not bound."""

    complete = False

    def __init__(self, tokens: _Tokens, also: Sequence[bytes], calls: Matcher, after: _Next | None) -> None:
        self._tokens = tokens
        self._also = also
        self._calls = calls
        self._after = after
        self._text = b""

    def allowed(self) -> array[int] | None:
        return None

    def accept(self, token: int) -> _Stage:
        return self.feed(self._tokens.text(token))

    def feed(self, text: bytes) -> _Stage:
        self._text += text
        begun = self._text.lstrip()
        for mark in self._also:
            begun = begun.removeprefix(mark).lstrip()
        if _BARE_CALL.match(begun):
            matcher = self._calls.copy()
            return _entered(self._tokens, matcher, self._after) if matcher.take_text(begun) else _Free()
        begins = any(mark.startswith(begun) for mark in self._also)
        return self if begins or _BARE_CALL_BEGUN.fullmatch(begun) else _Free()


def _entered(tokens: _Tokens, matcher: Matcher, following: _Next | None) -> _Stage:
    if matcher.complete and following is not None:
        return following()
    return _Bound(tokens, [_Part(matcher, following)])


class _Piece(NamedTuple):
    """A token and its text; without a token, the end of one."""

    token: int | None
    text: bytes


def _taken(matcher: Matcher, pieces: Sequence[_Piece]) -> bool:
    """Whether all of it fits."""
    return all(matcher.take_text(text) if token is None else matcher.take(token) for token, text in pieces)


class _Begun(NamedTuple):
    """What has come of a mark, and what has not."""

    pieces: list[_Piece]
    rest: bytes


class _Mark:
    """Finds a mark in the text of tokens as they come."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._pieces: list[_Piece] = []
        self._seen = b""  # their text: so much that the mark may begin in it

    def push(self, text: bytes, token: int | None) -> list[_Piece] | None:
        """The pieces from the mark on, if it has come; then it is looked for anew."""
        self._pieces.append(_Piece(token, text))
        self._seen += text
        begin = self._seen.find(self.text)
        if begin >= 0:
            found = self._from(begin)
            self._pieces, self._seen = [], b""
            return found
        while self._pieces and len(self._seen) - len(self._pieces[0].text) >= len(self.text) - 1:
            self._seen = self._seen[len(self._pieces.pop(0).text) :]
        return None

    def begun(self) -> list[_Begun]:
        """Every way in which what has come may be the beginning of the mark, but not all of it."""
        lengths = range(1, min(len(self.text) - 1, len(self._seen)) + 1)
        return [
            _Begun(self._from(len(self._seen) - n), self.text[n:])
            for n in lengths
            if self._seen.endswith(self.text[:n])
        ]

    def _from(self, begin: int) -> list[_Piece]:
        """The pieces of what was seen, from a place on."""
        found = []
        for piece in self._pieces:
            if begin <= 0:
                found.append(piece)
            elif begin < len(piece.text):
                found.append(_Piece(None, piece.text[begin:]))
            begin -= len(piece.text)
        return found


class _Tokens:
    """Sets of tokens, as bits."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, texts: Callable[[], Sequence[bytes]]) -> None:
        self._tokenizer = tokenizer
        self._texts = texts
        self._words = words_of(max(tokenizer.vocab_size, vocab_size))
        self._vocab_size = vocab_size
        self._beyond: dict[tuple[bytes, bool], int] = {}
        self.ending = sum(1 << token for token in tokenizer.stop_ids)  # an answer

    def text(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)

    def special(self, marks: Sequence[str]) -> int:
        """Those of the marks that are special tokens."""
        tokens = [self._tokenizer.token_id(mark) for mark in marks]
        return sum(1 << token for token in tokens if token is not None and self._tokenizer.is_special(token))

    def encode(self, text: str | bytes) -> list[int]:
        return list(self._tokenizer.encode(text, add_special=False, parse_special=True))

    def literal(self, text: str) -> Grammar:
        """Just this text, or its special tokens, and perhaps white space that the last token brings along."""
        from localinfer.text.literals import ANY_TOKENS, Literals

        return Grammar("lark", f"{ANY_TOKENS}\nstart: {Literals(self._tokenizer)(text)} /[ \\n]{{0,4}}/")

    def only(self, token: int) -> array[int]:
        bits = array("I", bytes(4 * self._words))
        bits[token // 32] = 1 << token % 32
        return bits

    def all_but(self, banned: int) -> array[int]:
        return _as_bits(((1 << self._vocab_size) - 1) & ~banned, self._words)

    def going_beyond(self, rest: bytes, *, white: bool = True) -> int:
        """Tokens that begin with `rest` and do not end with it; with `white` false, only where more than white space
        follows."""
        found = self._beyond.get((rest, white))
        if found is None:
            found = 0
            for token, text in enumerate(self._texts()):
                if text.startswith(rest) and len(text) > len(rest) and (white or text[len(rest) :].strip()):
                    found |= 1 << token
            self._beyond[rest, white] = found
        return found


def _as_number(bits: array[int]) -> int:
    return int.from_bytes(bits.tobytes(), "little")


def _as_bits(number: int, words: int) -> array[int]:
    bits = array("I")
    bits.frombytes(number.to_bytes(4 * words, "little"))
    return bits
