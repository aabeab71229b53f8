"""Documents as pieces of text: whole texts, and records with parts that a model does not learn.

::

    record                                      pieces (in parentheses: they do not count)
    {"text": t}                                 t
    {"prompt": p, "completion": c}              (p) c
    {"messages": [{"role": "user", ...},        the text of the chat template, in which what
                  {"role": "assistant", ...}]}  the assistant says counts
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.dataset.tokenizer import Piece
from jaxpipe.runtime.data.preparation.chat_text import ChatForm, SpecialTokens, ends_itself
from jaxpipe.runtime.data.preparation.conversation import (
    LAYOUT_FIELDS,
    Prompted,
    RecordLayout,
    read_conversation,
)
from jaxpipe.runtime.data.preparation.record_rows import check_characters

_LAYOUTS_OF: Final = {
    "prompt_field": (RecordLayout.PROMPT_COMPLETION,),
    "messages_field": (RecordLayout.MESSAGES, RecordLayout.SHAREGPT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The pieces of a document, and what its tokenizer puts around them.

    `begins` and `ends` say whether it gets the begin of text and the separator, `end_counts`
    whether a model learns the latter.
    """

    pieces: Iterable[Piece]
    begins: bool = True
    ends: bool = True
    end_counts: bool = True

    def __iter__(self) -> Iterator[Piece]:
        """Yield the pieces."""
        return iter(self.pieces)

    @property
    def num_characters(self) -> int | None:
        """The length of a document that is in memory, as records are; None of one in a file."""
        if not isinstance(self.pieces, Sequence):
            return None
        return sum(len(piece.text) for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of a record that have its text: one, or a prompt and a completion, or messages.

    `layout` says how a record holds a conversation, `form` how that becomes text, and `special`
    where the names of special tokens are their ids.

    Raises:
        DataError: there is a prompt without a completion, or messages next to them, or they are of
            another layout.
    """

    text: str = "text"
    prompt: str | None = None
    completion: str | None = None
    messages: str | None = None
    layout: RecordLayout | None = None
    form: ChatForm = field(default_factory=ChatForm)
    special: SpecialTokens = SpecialTokens.OWN

    def __post_init__(self) -> None:
        if (self.prompt is None) != (self.completion is None):
            raise DataError(
                f"`prompt_field` and `completion_field` belong together: they are {self.prompt!r} "
                f"and {self.completion!r}; give both"
            )
        if self.messages is not None and self.prompt is not None:
            raise DataError(
                "a record has a prompt and a completion, or messages: `prompt_field` is "
                f"{self.prompt!r}, `messages_field` {self.messages!r}; give either"
            )
        given = {"prompt_field": self.prompt, "messages_field": self.messages}
        for name, layouts in _LAYOUTS_OF.items():
            if given[name] is not None and self.layout not in (None, *layouts):
                raise DataError(
                    f"`{name}` ({given[name]}) is for records of the layout {layouts[0]}, not "
                    f"{self.layout}; leave one of them out"
                )

    @property
    def chat(self) -> RecordLayout | None:
        """The layout of conversations; None of records with texts."""
        if self.layout is not None:
            return self.layout
        if self.messages is not None:
            return RecordLayout.MESSAGES
        return None if self.prompt is None else RecordLayout.PROMPT_COMPLETION

    @property
    def masked(self) -> bool:
        """Whether parts of a document do not count."""
        return self.chat is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields that are read, and have to be there."""
        if self.chat is None:
            return (self.text,)
        if self.prompt is not None and self.completion is not None:
            return (self.prompt, self.completion)
        first, *others = LAYOUT_FIELDS[self.chat][0]
        return (self.messages or first, *others)

    @property
    def optional(self) -> tuple[str, ...]:
        """The names of the fields that are read if they are there."""
        return () if self.chat is None else LAYOUT_FIELDS[self.chat][1]

    def document(self, record: Mapping[str, Any], *, where: str) -> Document:
        """Return the document of a record; `where` names its place in an error.

        Raises:
            DataError: a field is missing, or is of another kind.

        >>> fields = Fields(prompt="q", completion="a")
        >>> document = fields.document({"q": "2 + 2 = ", "a": "4"}, where="line 1 of x.jsonl")
        >>> [(piece.text, piece.counts) for piece in document]
        [('2 + 2 = ', False), ('4', True)]
        """
        if self.chat is None:
            return Document(pieces=(self.piece(_text(record, self.text, where=where)),))
        for name in self.names:
            if name not in record:
                raise _wrong(record, name, kind="a text or messages", where=where)
        conversation = read_conversation(record, self.chat, where=where, names=self.names)
        if isinstance(conversation, Prompted):
            prompt, completion = (
                _checked(text, name, where=where)
                for text, name in zip(
                    (conversation.prompt, conversation.completion), self.names, strict=False
                )
            )
            return Document(pieces=(self.piece(prompt, counts=False), self.piece(completion)))
        try:
            pieces = self.form.rendered(conversation)
        except DataError as error:
            raise DataError(f"{error} ({where})") from None
        ends = not ends_itself(pieces, self.form.control)
        counts = conversation.learned[-1]
        return Document(pieces=pieces, begins=False, ends=ends, end_counts=counts)

    def piece(self, text: str, *, counts: bool = True) -> Piece:
        """Return a piece of a text of the user."""
        return Piece(text, counts, spelt=self.special is SpecialTokens.NONE)


def _text(record: Mapping[str, Any], name: str, *, where: str) -> str:
    text = record.get(name)
    if not isinstance(text, str):
        raise _wrong(record, name, kind="a text", where=where)
    return _checked(text, name, where=where)


def _checked(text: str, name: str, *, where: str) -> str:
    check_characters(text, subject=f"`{name}`", where=where)
    return text


def value_text(value: Any) -> str:
    """Return a value as an error names it: what JSON has no text for by its name there.

    >>> value_text(None), value_text(float("nan")), value_text("a")
    ('null', 'NaN', "'a'")
    """
    if value is None:
        return "null"
    return "NaN" if value != value else repr(value)[:60]  # noqa: PLR0124


def _wrong(record: Mapping[str, Any], name: str, *, kind: str, where: str) -> DataError:
    value = value_text(record[name]) if name in record else "missing"
    others = ", ".join(sorted(map(str, record)))[:120]
    return DataError(
        f"every record must have {kind} under `{name}`: in {where} it is {value}, and the fields "
        f"are {others}; correct it, or name another field (`--field`, `--messages-field`, or "
        "`--prompt-field` and `--completion-field`)"
    )
