"""Grammars: which token may come next, so that an answer is JSON of a schema, matches a regular expression, and so on.

llguidance does the parsing. Here it gets a model's vocabulary as bytes, what may be wrong with a constraint becomes a
typed error, and one compiled grammar serves every answer that asks for the same.

What a Lark grammar (``StructuredOutputsParams(grammar=...)``) may contain
    llguidance's dialect of Lark: rules in lower case, terminals (regular expressions without recursion) in upper
    case, ``start`` first of all. A terminal matches as much as it can, or as little with ``name[lazy]: ...``.

    - ``"text"`` is text, quoted as JSON quotes it: ``json.dumps(text)`` writes any text so. Special tokens never
      stand for text; added tokens that are not special (``<tool_call>`` in many vocabularies) do.
    - ``<NAME>`` in a rule is one token by its spelling: ``<|python_tag|>``, ``<tool_call>``, ``<[TOOL_CALLS]>`` for
      ``[TOOL_CALLS]``; ``<[7]>`` is one by its number. An end-of-sequence token ends the answer wherever it stands.
    - ``%json {...}`` in a rule is JSON of that schema, with the same white space as for ``json``.
    - Free text up to a trigger: ``head[lazy]: /(.|\\n)*<tool_call>/`` where the trigger is text, and
      ``head: /(.|\\n)*/ <|python_tag|>`` where it is a special token. ``Tokenizer.is_special`` tells which.

    ``~`` alone matches any bytes, special tokens included: write ``/(?s:.*)/ & ~/.../``.
    ``temperature=`` has no effect, and ``stop=`` cannot take back what it matched: use ``lazy``.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from octavo.errors import InvalidRequestError, shown
from octavo.text.lark import JSON_STYLE, prepared
from octavo.text.messages import plain

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from llguidance import LLMatcher, LLTokenizer

    from octavo.text.tokenizer import Tokenizer

MAX_SOURCE = 131_072
"""Most characters of a schema, a regular expression, a grammar, or all choices together."""
MAX_CACHED_SOURCE = 8 * MAX_SOURCE
"""Compiled grammars are kept up to this many characters of source; a long one takes some 400 bytes for each."""
_STACK_BYTES = 256 * 2**20
"""llguidance recurses as deep as rules refer to each other. The worst sources that were found took under 90 MiB."""
_LONGEST_FORCED = 4096
_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """What an answer must look like. Exactly one field is set; the names are vLLM's.

    Attributes:
        json: a JSON schema, as a mapping or as its text; kept as its text. Properties come in the order of the
            schema, and white space is at most one space after a comma or a colon.
        json_object: any JSON object.
        regex: a regular expression in the syntax of Rust's ``regex``, which the whole answer matches. It has no
            look-around and no back-references.
        choice: the answer is one of these texts.
        grammar: a Lark grammar in llguidance's dialect; see :mod:`octavo.text.grammar` for what it may contain.

    Raises:
        InvalidRequestError: on construction, none or several are set, or one is not of its type; ``param`` names it.
            Whether a schema, an expression or a grammar makes sense is found when it is compiled for a model.
    """

    json: Mapping[str, Any] | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            raise _refused("json_object", f"must be True or False; got {shown(self.json_object)}")
        given = self._given
        if len(given) != 1:
            raise InvalidRequestError(
                f"structured_outputs takes exactly one of {', '.join(_KINDS)}; got {' and '.join(given) or 'none'}",
                param="structured_outputs",
            )
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for kind in ("regex", "grammar"):
            if getattr(self, kind) is not None:
                _check_source(kind, getattr(self, kind))

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        return self._given[0]

    @property
    def _given(self) -> list[str]:
        return [kind for kind in _KINDS if getattr(self, kind) is not None and getattr(self, kind) is not False]


class Grammar:
    """What one answer may go on with. Not thread-safe; every answer has its own :meth:`copy`.

    Attributes:
        failure: why nothing is allowed any more, if the parser gave up (a grammar more ambiguous than its limits
            allow).
    """

    def __init__(self, matcher: LLMatcher, num_tokens: int) -> None:
        self._matcher = matcher
        self._num_tokens = num_tokens
        self._num_words = -(-num_tokens // 32)
        self.failure: str | None = None

    def copy(self) -> Grammar:
        """The same state once more; neither changes the other."""
        return Grammar(self._matcher.deep_copy(), self._num_tokens)

    def fill_mask(self, mask: npt.NDArray[np.int32]) -> None:
        """Write which tokens may come next: bit ``t % 32`` of word ``t // 32`` allows token t.

        Args:
            mask: ``[ceil(vocab_size / 32)]``, contiguous. Tokens the tokenizer does not have are not allowed, the
                model's end-of-sequence tokens are wherever the answer may end, and after a :attr:`failure` nothing is.
        """
        words = self._num_words
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, 4 * words)
        mask[words:] = 0
        if self._num_tokens % 32:
            mask[words - 1] &= (1 << self._num_tokens % 32) - 1
        if self._matcher.is_error():  # llguidance then allows the end, which would pass for a complete answer
            self._fail()
            mask[:] = 0

    def accept(self, token: int) -> None:
        """Go on to the state after ``token``, one that the mask allows; any other is a :attr:`failure`."""
        if not self._matcher.consume_token(token):
            self._fail()

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete and nothing but its end may follow."""
        return self.failure is None and self._matcher.is_stopped()

    def _fail(self) -> None:
        self.failure = f"the grammar cannot go on: {_shortened(self._matcher.get_error())}"


class GrammarCompiler:
    """Compiles constraints for one vocabulary. Any thread may use it.

    llguidance's tokenizer is built on the first use: it takes a fraction of a second that a model without
    constraints need not pay.

    Args:
        vocab_size: the model's; tokens from there on do not exist for it.
        eos_token_ids: all of them are allowed where a grammar may end.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = min(tokenizer.vocab_size, vocab_size)
        self._eos_token_ids = sorted(token for token in eos_token_ids if 0 <= token < self._num_tokens)
        self._built: LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._cached_source = 0
        self._lock = threading.Lock()

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """The state of an answer that has not begun. What was compiled lately is only copied.

        Raises:
            InvalidRequestError: it makes no sense, allows nothing, or is more than llguidance's limits allow;
                ``param`` is ``"structured_outputs."`` and the field's name.
        """
        kind, source = params.kind, _source(params)
        with self._lock:
            known = self._compiled.get((kind, source))
            if known is not None:
                self._compiled.move_to_end((kind, source))
                return known.copy()
        grammar = _on_deep_stack(lambda: self._compile(kind, source))
        with self._lock:
            self._remember((kind, source), grammar)
            return grammar.copy()

    def _compile(self, kind: str, source: str) -> Grammar:
        import numpy as np
        from llguidance import LLMatcher, LLParserLimits

        try:
            text = self._llguidance_grammar(kind, source)
        except ValueError as error:  # a number in a schema that Python reads and llguidance does not
            raise _refused(kind, f"cannot be used: {_shortened(str(error))}") from error
        matcher = LLMatcher(
            self._llguidance_tokenizer(), text, log_level=0, limits=LLParserLimits(verbose_errors=False)
        )
        if matcher.is_error():
            raise _refused(kind, f"cannot be used: {_shortened(matcher.get_error())}")
        grammar = Grammar(matcher, self._num_tokens)
        # The first mask takes longest, since the lexer's first states are built with it: copies share them.
        grammar.fill_mask(np.empty(-(-self._num_tokens // 32), np.int32))
        if grammar.failure is not None:
            raise _refused(kind, f"allows no answer that this model can write, or too many at once: {grammar.failure}")
        return grammar

    def _llguidance_grammar(self, kind: str, source: str) -> str:
        from llguidance import LLMatcher

        if kind in ("json", "json_object"):
            return LLMatcher.grammar_from_json_schema(source, overrides=JSON_STYLE)  # type: ignore[arg-type]
        if kind == "regex":
            return LLMatcher.grammar_from_regex(source)
        return source if kind == "choice" else prepared(source, self._named_token)

    def _named_token(self, name: str) -> int | None:
        """The token that a Lark grammar calls ``<name>``."""
        token = self._tokenizer.token_id(f"<{name}>")
        if token is None:
            token = self._tokenizer.token_id(name)
            if token is not None and not self._tokenizer.is_special(token):
                token = None
        return token if token is not None and token < self._num_tokens else None

    def _llguidance_tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._built is None:
                from llguidance import LLTokenizer

                vocabulary = _Vocabulary(self._tokenizer, self._num_tokens, self._eos_token_ids)
                # A list of none: the vocabulary then has an end of its own, behind the last token.
                self._built = LLTokenizer(vocabulary, eos_token=self._eos_token_ids or None)  # type: ignore[arg-type]
            return self._built

    def _remember(self, key: tuple[str, str], grammar: Grammar) -> None:
        if key not in self._compiled:
            self._cached_source += len(key[1])
        self._compiled[key] = grammar
        while self._cached_source > MAX_CACHED_SOURCE:
            (_, source), _ = self._compiled.popitem(last=False)
            self._cached_source -= len(source)


@lru_cache(maxsize=256)
def schema_problem(schema: str) -> str | None:
    """Why no grammar can be made of this JSON schema; ``None`` if one can. No vocabulary is needed to tell."""
    from llguidance import LLMatcher

    def check() -> str:
        return LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema, overrides=JSON_STYLE))  # type: ignore[arg-type]

    try:
        problem = _on_deep_stack(check)
    except ValueError as error:  # as in :meth:`GrammarCompiler._compile`
        problem = str(error)
    return _shortened(problem) if problem else None


class _Vocabulary:
    """A vocabulary as llguidance reads it, in the attributes that it looks for.

    Special tokens and those that end an answer stand for no text, so that no string can hold them. Called with a
    text, it tokenises it: where a grammar leaves only one way to go on, llguidance wants the tokens that the
    model would know.
    """

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, num_tokens: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(token) for token in range(num_tokens)]
        ends = set(eos_token_ids)
        self.special_token_ids = [token for token in range(num_tokens) if tokenizer.is_special(token) or token in ends]
        self.eos_token_id = eos_token_ids[0] if eos_token_ids else None
        self.bos_token_id = tokenizer.bos_token_id
        self._text_tokens = frozenset(range(num_tokens)).difference(self.special_token_ids)
        self._of_bytes = {self.tokens[token]: token for token in self._text_tokens}
        self._longest = max(map(len, self._of_bytes), default=0)

    def __call__(self, text: str) -> list[int]:
        """The tokens of ``text``, which joined are its bytes. Never raises: llguidance would panic."""
        text = text[:_LONGEST_FORCED]  # of the tokens of a text it uses the first two; a text can have 100,000
        wanted = text.encode()
        tokens = self._encoded(text)
        if self._bytes(tokens) != wanted:  # sentencepiece puts a space before a text, but none behind a lone byte
            tokens = self._encoded("\x02" + text)
            pieces = [self._bytes([token]) for token in tokens]
            tokens = tokens[pieces.index(b"\x02") + 1 :] if b"\x02" in pieces else []
        return tokens if self._bytes(tokens) == wanted else self._greedy(wanted)

    def _bytes(self, tokens: list[int]) -> bytes:
        return b"".join([self.tokens[token] for token in tokens if token in self._text_tokens])

    def _encoded(self, text: str) -> list[int]:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except InvalidRequestError:
            return []

    def _greedy(self, text: bytes) -> list[int]:
        """The longest token first; what no token begins with ends it."""
        tokens: list[int] = []
        while text:
            for length in range(min(self._longest, len(text)), 0, -1):
                if text[:length] in self._of_bytes:
                    tokens.append(self._of_bytes[text[:length]])
                    text = text[length:]
                    break
            else:
                return tokens
        return tokens


def _source(params: StructuredOutputsParams) -> str:
    """A constraint as one text."""
    if params.json_object:
        return '{"type": "object"}'
    if params.choice is not None:
        return "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, params.choice))
    return str(params.json or params.regex or params.grammar or "")


def _schema_text(schema: object) -> str:
    """A JSON schema as its text, checked to be an object."""
    if isinstance(schema, str):
        _check_source("json", schema)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise _refused("json", f"must be a JSON schema; it is no JSON: {_shortened(str(error))}") from error
    if not isinstance(schema, Mapping):
        raise _refused("json", f"must be a JSON schema, an object or its text; got {shown(schema)}")
    if "x-guidance" in schema:
        raise _refused("json", "must be a JSON schema; x-guidance is not part of one. Write a grammar with %json")
    copy = plain(schema, "structured_outputs.json")
    try:
        text = json.dumps(copy, ensure_ascii=False, allow_nan=False)
    except ValueError as error:  # a number that is none, or one with more digits than Python prints
        raise _refused("json", f"must be a JSON schema; {_shortened(str(error))}") from error
    _check_source("json", text)
    return text


def _choices(choice: object) -> tuple[str, ...]:
    valid = isinstance(choice, Sequence) and not isinstance(choice, (str, bytes)) and len(choice) > 0
    if not valid or not all(isinstance(text, str) and text for text in choice):  # type: ignore[attr-defined]
        raise _refused("choice", f"must be a list of non-empty texts; got {shown(choice)}")
    texts: tuple[str, ...] = tuple(choice)  # type: ignore[arg-type]
    _check_source("choice", "".join(texts))
    return texts


def _check_source(kind: str, source: object) -> None:
    if not isinstance(source, str):
        raise _refused(kind, f"must be text; got {shown(source)}")
    if len(source) > MAX_SOURCE:
        raise _refused(kind, f"has {len(source):,} characters; at most {MAX_SOURCE:,} are allowed")
    try:
        source.encode()
    except UnicodeEncodeError:
        raise _refused(kind, "holds half a surrogate pair; text must be valid Unicode") from None


def _refused(kind: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"structured_outputs.{kind} {why}", param=f"structured_outputs.{kind}")


def _shortened(message: str) -> str:
    """What llguidance says, without the lines of source that it draws under it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reasons = [line for line in lines[1:] if line.startswith("error: ")]
    kept = [re.sub(r"\s+", " ", line) for line in lines[:1] + reasons]
    return "; ".join(line if len(line) <= 200 else line[:197] + "..." for line in kept) or "no reason was given"


_STACK_LOCK = threading.Lock()


def _on_deep_stack(function: Callable[[], _R]) -> _R:
    """What ``function`` returns or raises, run where recursion as deep as any source allows has room."""
    outcome: list[_R] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            errors.append(error)

    with (
        _STACK_LOCK
    ):  # the size is the process's: a thread that another starts meanwhile gets it too, which does no harm
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="octavo-grammar", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]
