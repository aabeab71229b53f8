"""Documents as pieces of text: whole texts, and records with parts that a model does not learn.

::

    record                                      pieces (in parentheses: they do not count)
    {"text": t}                                 t
    {"prompt": p, "completion": c}              (p) c
    {"messages": [{"role": "user", ...},        (user: LF content LF LF)
                  {"role": "assistant", ...}]}  (assistant: LF) content LF LF
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxpipe.errors import DataError

_ROLES = ("system", "user", "assistant", "tool")
_LEARNED_ROLE = "assistant"


class Piece(NamedTuple):
    """A part of a document; where it does not count, its tokens are no targets."""

    text: str
    counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of a record that have its text: one, or a prompt and a completion, or messages.

    Raises:
        DataError: there is a prompt without a completion, or messages next to them.
    """

    text: str = "text"
    prompt: str | None = None
    completion: str | None = None
    messages: str | None = None

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

    @property
    def masked(self) -> bool:
        """Whether parts of a document do not count."""
        return self.prompt is not None or self.messages is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields that are read."""
        if self.messages is not None:
            return (self.messages,)
        if self.prompt is not None and self.completion is not None:
            return (self.prompt, self.completion)
        return (self.text,)

    def pieces(self, record: Mapping[str, Any], *, where: str) -> tuple[Piece, ...]:
        """Return the document of a record; `where` names its place in an error.

        Raises:
            DataError: a field is missing, or is of another kind.

        >>> fields = Fields(prompt="q", completion="a")
        >>> fields.pieces({"q": "2 + 2 = ", "a": "4"}, where="line 1 of x.jsonl")
        (Piece(text='2 + 2 = ', counts=False), Piece(text='4', counts=True))
        """
        if self.messages is not None:
            return _of_messages(record, self.messages, where=where)
        found = [_text(record, name, where=where) for name in self.names]
        counted = (True,) if len(found) == 1 else (False, True)
        return tuple(map(Piece, found, counted))


def _text(record: Mapping[str, Any], name: str, *, where: str) -> str:
    text = record.get(name)
    if not isinstance(text, str):
        raise _wrong(record, name, kind="a text", where=where)
    return _checked(text, name, where=where)


def _of_messages(record: Mapping[str, Any], name: str, *, where: str) -> tuple[Piece, ...]:
    messages = record.get(name)
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise _wrong(record, name, kind="a list of messages", where=where)
    pieces: list[Piece] = []
    for number, each in enumerate(messages, 1):
        role = each.get("role") if isinstance(each, Mapping) else None
        content = each.get("content") if isinstance(each, Mapping) else None
        if role not in _ROLES or not isinstance(content, str):
            raise DataError(
                f"`{name}` must be messages with a `role` ({', '.join(_ROLES)}) and a text as "
                f"`content`: message {number} in {where} is not ({each!r:.60}); correct it"
            )
        content = _checked(content, name, where=where)
        pieces += [Piece(f"{role}:\n", False), Piece(f"{content}\n\n", role == _LEARNED_ROLE)]
    return tuple(pieces)


def _checked(text: str, name: str, *, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a pair of surrogates, which JSON can escape
        raise DataError(
            f"`{name}` must be text that UTF-8 can hold; {where} has none ({error.reason}); "
            "correct it"
        ) from None
    return text


def _wrong(record: Mapping[str, Any], name: str, *, kind: str, where: str) -> DataError:
    found = repr(record[name])[:60] if name in record else "missing"
    others = ", ".join(sorted(map(str, record)))[:120]
    return DataError(
        f"every record must have {kind} under `{name}`: in {where} it is {found}, and the fields "
        f"are {others}; correct it, or name another field"
    )
