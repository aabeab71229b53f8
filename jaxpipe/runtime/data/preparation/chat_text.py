"""Conversations as pieces of text: the form of a chat template, and what counts in it.

::

    {% generation %}     the marks of the template say what counts
    without marks        <|start|>user LF hi<|end|> LF <|start|>assistant LF hello<|end|> LF
                         ├──── rendered, up to a message, as a prompt ────┤
                         ├──── rendered, with the message ─────────────────────────────┤
                                                                          └── counts ──┘

Where a template changes earlier turns, as those that drop their reasoning do, what ends a turn is
found by rendering it with other texts.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any, Final

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.dataset.byte_pairs import BytePairs
from jaxpipe.runtime.data.dataset.chat_template import DEFAULT, PLAIN, ChatTemplate, Message
from jaxpipe.runtime.data.dataset.tokenizer import Piece, Tokenizer
from jaxpipe.runtime.data.preparation.conversation import Conversation

_BEGIN, _END = "\ufdd2", "\ufdd3"  # noncharacters, around what a stranger has spelt
_PROBE: Final = "jaxpipe-probe"
_READ: Final = ("role", "content")


class SpecialTokens(StrEnum):
    """Where the names of special tokens in a text are their ids, and not spelt out."""

    OWN = "own"
    """In texts, prompts and completions; not in what messages and tools say."""
    ALL = "all"
    """Everywhere: the records are trusted."""
    NONE = "none"
    """Nowhere but in what the tokenizer and its template write."""


@dataclass(frozen=True)
class ChatForm:
    """How conversations become text: a template, and the tokens that nobody may forge.

    `special` names special tokens, `control` also the others that the template writes. What the
    assistant says may have the latter, such as `<think>`; what others say has neither. `ignored`
    counts the fields of messages that the template does not read.
    """

    template: ChatTemplate = field(default_factory=lambda: ChatTemplate({DEFAULT: PLAIN}))
    special: frozenset[str] = frozenset()
    control: frozenset[str] = frozenset()
    ignored: Counter[str] = field(default_factory=Counter, compare=False)

    def rendered(self, conversation: Conversation, *, prompts: bool = False) -> list[Piece]:
        """Return a conversation as pieces; with `prompts`, the next words are the assistant's.

        Raises:
            DataError: the template refuses it, or shows no end of a turn that counts.
        """
        messages = [self._prepared(message) for message in conversation.messages]
        tools = None
        if conversation.tools is not None:
            tools = [_marked(tool, self._strange) for tool in conversation.tools]
            self._count_ignored(("tools",))
        conversation = replace(
            conversation, messages=tuple(messages), tools=None if tools is None else tuple(tools)
        )
        text, spans = _spans(self.template, conversation, prompts=prompts)
        return list(_pieces(text, spans))

    @cached_property
    def _strange(self) -> re.Pattern[str]:
        return _pattern(self.control)

    @cached_property
    def _said(self) -> re.Pattern[str]:
        return _pattern(self.special)

    @cached_property
    def _reads_parts(self) -> bool:
        """Whether the template reads contents that are lists of parts."""
        shown = _try(self.template, {"role": "user", "content": [{"type": "text", "text": _PROBE}]})
        return _PROBE in shown and "'type'" not in shown and "'text'" not in shown

    @cached_property
    def _reads_developer(self) -> bool:
        shown = _try(
            self.template,
            {"role": "developer", "content": _PROBE},
            {"role": "user", "content": "a"},
        )
        return _PROBE in shown

    def _prepared(self, message: Message) -> dict[str, Any]:
        """Return a message as the template reads it, with what is spelt in it marked."""
        fields = dict(message)
        if isinstance(fields["content"], list) and not self._reads_parts:
            fields["content"] = "".join(part["text"] for part in fields["content"])
        if fields["role"] == "developer" and not self._reads_developer:
            fields["role"] = "system"
        self._count_ignored(name for name in fields if name not in _READ)
        names = self._said if fields["role"] == "assistant" else self._strange
        return {
            name: value if name == "role" else _marked(value, names)
            for name, value in fields.items()
        }

    def _count_ignored(self, names: Iterable[str]) -> None:
        self.ignored.update(name for name in names if name not in self.template.source)


def chat_form(tokenizer: Tokenizer | None, special: SpecialTokens) -> ChatForm:
    """Return how a tokenizer writes conversations: by its template, or with plain roles."""
    if not isinstance(tokenizer, BytePairs):
        return ChatForm()
    template = tokenizer.template or ChatTemplate({DEFAULT: PLAIN})
    if special is SpecialTokens.ALL:
        return ChatForm(template)
    control = tokenizer.control
    said = control if special is SpecialTokens.NONE else tokenizer.special
    return ChatForm(template, special=said, control=control)


def ends_itself(pieces: Sequence[Piece], special: Iterable[str]) -> bool:
    """Return whether a text ends with a special token, but for blanks behind it."""
    text = "".join(piece.text for piece in pieces[-2:] if not piece.spelt).rstrip()
    return any(text.endswith(name) for name in special)


def _spans(
    template: ChatTemplate, conversation: Conversation, *, prompts: bool
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a conversation, and the characters of it that count."""
    messages, tools = conversation.messages, conversation.tools
    shown = template.render(messages, tools=tools, prompts=prompts)
    numbers = [number for number, learned in enumerate(conversation.learned) if learned]
    answers = sum(message["role"] == "assistant" for message in messages)
    if not template.marks_generation:
        return shown.text, [_turn(template, conversation, number, shown.text) for number in numbers]
    spans = [(part.start, part.stop) for part in shown.generated]
    if len(numbers) == answers:
        return shown.text, spans
    if len(spans) != answers:
        raise DataError(
            f"`chat_template` must mark each of the {answers} answers once, where some do not "
            f"count; it marks {len(spans)}; correct it"
        )
    order = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    return shown.text, [span for n, span in zip(order, spans, strict=True) if n in numbers]


def _turn(
    template: ChatTemplate, conversation: Conversation, number: int, text: str
) -> tuple[int, int]:
    """Return the characters of a turn that a model has to say: after the prompt for it."""
    messages, tools = conversation.messages, conversation.tools

    def shown(*turns: Message, prompts: bool = False) -> str:
        return template.render(turns, tools=tools, prompts=prompts).text

    before, after = messages[:number], messages[number + 1 :]
    other, another = ({"role": "assistant", "content": word} for word in ("x", "y"))
    begin = shown(*before, prompts=True) if before else ""
    if not before or not text.startswith(begin):
        begin = _common_prefix([shown(*before, other), shown(*before, another), text])
    with_turn = shown(*before, messages[number])
    if text.startswith(with_turn):
        return len(begin), len(with_turn)
    # Behind the content there is what ends a turn, then the rest of the conversation.
    rest = _common_suffix([shown(*before, turn, *after) for turn in (other, another)])
    end = _common_suffix([shown(*before, turn) for turn in (other, another)])
    if not text.endswith(rest) or not rest.startswith(end):
        raise DataError(
            f"`chat_template` must show where message {number + 1} ends, which the messages after "
            "it change; put {% generation %} around what the assistant says"
        )
    return len(begin), len(text) - len(rest) + len(end)


def _common_suffix(texts: Sequence[str]) -> str:
    return _common_prefix([text[::-1] for text in texts])[::-1]


def _common_prefix(texts: Sequence[str]) -> str:
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in same)


def _pieces(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """Yield a text in pieces: which of it counts, and what a stranger has spelt."""
    edges = sorted({0, len(text), *(edge for span in spans for edge in span)})
    for begin, end in pairwise(edges):
        counts = any(first <= begin and end <= last for first, last in spans)
        parts = re.split(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}|[{_BEGIN}{_END}]", text[begin:end])
        # One text, one that is spelt, and so on; None at a mark without its other half.
        for number, part in enumerate(parts):
            if part:
                yield Piece(part, counts, spelt=number % 2 == 1)


def _pattern(names: Iterable[str]) -> re.Pattern[str]:
    longest = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest)) or "(?!)")


def _marked(value: Any, names: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        if _BEGIN in value or _END in value:
            raise DataError(
                "`messages` must be without the noncharacters U+FDD2 and U+FDD3, which mark what "
                f"is spelt; {value[:40]!r} has one; remove it"
            )
        return names.sub(lambda match: f"{_BEGIN}{match[0]}{_END}", value)
    if isinstance(value, Mapping):
        return {name: _marked(part, names) for name, part in value.items()}
    return [_marked(part, names) for part in value] if isinstance(value, list) else value


def _try(template: ChatTemplate, *messages: Message) -> str:
    try:
        return template.render(messages).text
    except DataError:
        return ""
