"""Tokenizer: text to token ids and back, over the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from octavo.errors import InvalidRequestError
from octavo.text.pieces import PieceTable, Spelling

TemplateSource = str | Mapping[str, str]
"""A chat template, or several by name (``default``, ``tool_use``)."""


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads.

    :func:`octavo.text.folder_tokenizer.tokenizer_from_folder` and
    :func:`octavo.text.gguf_tokenizer.tokenizer_from_gguf` make one.

    Attributes:
        vocab_size: one more than the highest token id. The model's own vocabulary may be larger (padded),
            never smaller.
        bos_token_id: the token a text begins with, if the model has one.
        eos_token_ids: tokens that the vocabulary says end a generation: end of text, end of turn. The model's
            configuration may list more.
        special_tokens: the named special tokens as text (``bos_token``, ``eos_token``, ...), as templates see
            them.
        strips_leading_space: the first token of a text carries a space that is not part of the text.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str],
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        """Take over ``backend``: truncation, padding and trimmed offsets are switched off in it.

        Raises:
            UnsupportedModelError: the tokenizer's decoder is of a kind Octavo does not read.
        """
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        spelling = Spelling.of(backend)
        contents = {id_: token.content for id_, token in added.items()}
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.special_tokens = dict(special_tokens)
        self.strips_leading_space = spelling.strip_space
        self._backend = backend
        self._special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self._all_pieces = PieceTable(backend, spelling, self.vocab_size, contents, frozenset())
        self._text_pieces = PieceTable(backend, spelling, self.vocab_size, contents, self._special_ids)
        self.bos_token_id = self._named_id("bos_token")
        eos = self._named_id("eos_token")
        self.eos_token_ids = frozenset(eos_token_ids) | (frozenset() if eos is None else {eos})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``. Special tokens written out in the text become those tokens.

        ``add_special_tokens``: put the tokens around it that the model wants around every text (often: bos
        first).

        Raises:
            InvalidRequestError: ``text`` is not text, or holds half a surrogate pair.
        """
        return self.encoding(text, add_special_tokens).ids

    def encoding(self, text: str, add_special_tokens: bool = True) -> Encoding:
        """The library's own result, whose ``ids`` and ``offsets`` become Python lists only when they are read.

        ``offsets``: for each token the characters ``[start, end)`` of ``text`` it covers. Several tokens that share
        one character all cover it. Tokens added around the text cover none: ``(0, 0)``.

        Raises:
            InvalidRequestError: as :meth:`encode`.
        """
        check_text(text, "prompt")
        try:
            # Only a batch is encoded without Python's lock: a long text would hold up all other threads for seconds.
            return self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        except BaseException as error:
            if not is_panic(error):
                raise
            raise InvalidRequestError(f"this model's tokenizer fails on this text: {error}", param="prompt") from error

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``token_ids``, taken as a text of its own. Bytes that are not UTF-8 become U+FFFD.

        Ids outside the vocabulary add nothing. Nothing is tidied afterwards
        (``clean_up_tokenization_spaces``).
        """
        pieces = self.pieces(skip_special_tokens)
        text = b"".join([pieces[token_id] for token_id in token_ids]).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def pieces(self, skip_special_tokens: bool) -> PieceTable:
        """The bytes of every token by id; special tokens have none if they are to be skipped."""
        return self._text_pieces if skip_special_tokens else self._all_pieces

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes ``token_id`` stands for: no bytes if it is outside the vocabulary."""
        return self._all_pieces[token_id]

    def token(self, token_id: int) -> str | None:
        """The vocabulary's spelling of a token (``"Ġthe"``, ``"▁the"``), or ``None`` outside it."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None

    def token_id(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary."""
        return self._backend.token_to_id(token)

    def is_special(self, token_id: int) -> bool:
        """Whether this is a control token, left out of the text unless it is asked for."""
        return token_id in self._special_ids

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)


def is_panic(error: BaseException) -> bool:
    """Whether the tokenizers library gave up. What it raises then is no ``Exception``, and its type is not exported."""
    return type(error).__name__ == "PanicException"


def check_text(text: object, param: str) -> None:
    """Refuse what no tokenizer can read.

    Raises:
        InvalidRequestError: ``text`` is not a ``str``, or holds half a surrogate pair (U+D800 to U+DFFF).
    """
    if not isinstance(text, str):
        raise InvalidRequestError(f"{param} must be text; got {type(text).__name__}", param=param)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{param} holds half a surrogate pair (U+{ord(text[error.start]):04X} at character "
            f"{error.start}); text must be valid Unicode",
            param=param,
        ) from None
