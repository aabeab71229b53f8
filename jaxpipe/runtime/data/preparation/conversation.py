"""Conversations of records, in the layouts of files that people share.

::

    messages             {"messages": [{"role", "content", ...}], "system", "tools"}
    sharegpt             {"conversations": [{"from", "value"}], "system", "tools"}
    alpaca               {"instruction", "input", "output", "system", "history"}
    prompt-completion    {"prompt": [messages], "completion": [messages], "label"}, or texts
    preference           {"prompt", "chosen", "rejected"}: the chosen side is learned

Names of roles and of fields are those that the template of a tokenizer reads, `role` and `content`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any, Final

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.preparation.record_rows import check_characters

_ROLES: Final[Mapping[str, str]] = {
    role: role for role in ("system", "developer", "user", "assistant", "tool")
} | {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "function_call": "assistant",
}
_CALL: Final = "function_call"
_WEIGHTS: Final = ("weight", "train")
_PAIR: Final = 2  # of texts: a question and its answer


class RecordLayout(StrEnum):
    """How a record holds a conversation."""

    MESSAGES = "messages"
    """Messages with `role` and `content`, as OpenAI has them; `system` and `tools` beside them."""
    SHAREGPT = "sharegpt"
    """A list under `conversations` with `from` and `value`; `system` and `tools` beside it."""
    ALPACA = "alpaca"
    """`instruction`, `input` and `output`; `system`, and `history` of pairs, beside them."""
    PROMPT_COMPLETION = "prompt-completion"
    """`prompt` and `completion`, texts or lists of messages, and a `label`, as TRL has them."""
    PREFERENCE = "preference"
    """`prompt`, `chosen` and `rejected`, of which the chosen side is learned."""


LAYOUT_FIELDS: Final[Mapping[RecordLayout, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    RecordLayout.MESSAGES: (("messages",), ("system", "tools")),
    RecordLayout.SHAREGPT: (("conversations",), ("system", "tools")),
    RecordLayout.ALPACA: (("instruction", "output"), ("input", "system", "history")),
    RecordLayout.PREFERENCE: (("chosen", "rejected"), ("prompt", "tools")),
    RecordLayout.PROMPT_COMPLETION: (("prompt", "completion"), ("label", "tools")),
}
"""The fields that a record of a layout has, and those that it may have."""


def layout_of(names: Sequence[str]) -> RecordLayout | None:
    """Return the first layout whose fields are among those of a record.

    >>> layout_of(["prompt", "chosen", "rejected"])
    <RecordLayout.PREFERENCE: 'preference'>
    """
    fits = (layout for layout, (needs, _) in LAYOUT_FIELDS.items() if set(needs) <= set(names))
    return next(fits, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages in order, the tools that may be called, and which messages are learned."""

    messages: tuple[Mapping[str, Any], ...]
    learned: tuple[bool, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompted:
    """A prompt and its completion as texts, without roles."""

    prompt: str
    completion: str


def read_conversation(
    record: Mapping[str, Any],
    layout: RecordLayout,
    *,
    where: str,
    names: Sequence[str] | None = None,
) -> Conversation | Prompted:
    """Return the conversation of a record; `names` are those that its needed fields have there.

    Raises:
        DataError: a field is missing, or a message is none; it names `where`, the message and the
            field.
    """
    needs, _ = LAYOUT_FIELDS[layout]
    given = dict(zip(needs, names or needs, strict=True))
    for name in given.values():
        if record.get(name) is None:
            raise _wrong(name, None, "a text or messages", where=where)
    try:
        return _READERS[layout]({**record, **{n: record[given[n]] for n in needs}}, where)
    except DataError as error:
        words = str(error)
        for need, name in given.items():
            words = words.replace(f"`{need}`", f"`{name}`")
        raise DataError(words) from None


def _of_messages(record: Mapping[str, Any], where: str) -> Conversation:
    turns = _list(record, "messages", where)
    return _conversation(_after_system(record, turns, where), record, where=where)


def _of_sharegpt(record: Mapping[str, Any], where: str) -> Conversation:
    turns = _list(record, "conversations", where)
    return _conversation(_after_system(record, turns, where), record, where=where)


def _of_alpaca(record: Mapping[str, Any], where: str) -> Conversation:
    texts = {name: record.get(name) or "" for name in ("instruction", "input", "output")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise _wrong(name, text, "a text", where=where)
    asked = "\n\n".join(filter(None, (texts["instruction"], texts["input"])))
    pairs = [*_history(record, where), (asked, texts["output"])]
    roles = ("user", "assistant")
    turns = [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(roles, pair, strict=True)
    ]
    return _conversation(_after_system(record, turns, where), {}, where=where)


def _history(record: Mapping[str, Any], where: str) -> list[Any]:
    """Return the earlier questions and answers of an Alpaca record, as LLaMA-Factory has them."""
    pairs = record.get("history") or []
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == _PAIR for pair in pairs
    ):
        raise _wrong("history", pairs, "a list of pairs of texts", where=where)
    return pairs


def _of_prompt(record: Mapping[str, Any], where: str) -> Conversation | Prompted:
    if record.get("label") is False:
        rule = "true, or absent, for a completion that is to be learned"
        raise _wrong("label", False, rule, where=where)
    return _prompted(record, "prompt", record["prompt"], "completion", where=where)


def _of_preference(record: Mapping[str, Any], where: str) -> Conversation | Prompted:
    chosen, rejected, prompt = record["chosen"], record["rejected"], record.get("prompt")
    if isinstance(chosen, str) and prompt is None:
        return _without_prompt(chosen, rejected, where)
    if isinstance(chosen, str) or (_starts_with_answer(chosen) and prompt is not None):
        return _prompted(record, "prompt", prompt or "", "chosen", where=where)
    turns = _list(record, "chosen", where)
    others = rejected if isinstance(rejected, list) else []
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(turns, others, strict=False))))
    return _conversation(turns, record, where=where, learned_from=min(same, len(turns) - 1))


def _without_prompt(chosen: str, rejected: Any, where: str) -> Prompted:
    """Return the words that both sides begin with as the prompt, as `extract_prompt` of TRL."""
    both = zip(chosen, rejected if isinstance(rejected, str) else "", strict=False)
    shared = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], both))
    end = max((blank.start() for blank in re.finditer(r"\s", shared)), default=0)
    if not shared[:end].strip():
        rule = "a text or messages, or `chosen` and `rejected` must begin with the same words"
        raise _wrong("prompt", None, rule, where=where)
    return Prompted(prompt=chosen[:end], completion=chosen[end:])


def _prompted(
    record: Mapping[str, Any], name: str, prompt: Any, answer: str, *, where: str
) -> Conversation | Prompted:
    completion = record[answer]
    if isinstance(prompt, str) and isinstance(completion, str):
        return Prompted(prompt=prompt, completion=completion)
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    said = (
        [{"role": "assistant", "content": completion}]
        if isinstance(completion, str)
        else completion
    )
    turns = {name: asked, answer: said}
    first = _list(turns, name, where)
    both = [*first, *_list(turns, answer, where)]
    return _conversation(both, record, where=where, learned_from=len(first))


def _starts_with_answer(turns: Any) -> bool:
    first = turns[0] if isinstance(turns, list) and turns else None
    return isinstance(first, Mapping) and _ROLES.get(str(first.get("role"))) == "assistant"


def _after_system(record: Mapping[str, Any], turns: list[Any], where: str) -> list[Any]:
    """Return turns after the message of the system that a record has beside them."""
    if not (system := record.get("system")):
        return turns
    first = turns[0] if isinstance(turns[0], Mapping) else {}
    if first.get("role", first.get("from")) not in ("system", "developer"):
        return [{"role": "system", "content": system}, *turns]
    if first.get("content", first.get("value")) != system:
        raise _wrong("system", system, "the message of the system among the others", where=where)
    return turns


def _conversation(
    turns: Sequence[Any], record: Mapping[str, Any], *, where: str, learned_from: int = 0
) -> Conversation:
    pairs = [_message(turn, f"message {n} in {where}") for n, turn in enumerate(turns, 1)]
    return Conversation(
        messages=tuple(message for message, _ in pairs),
        learned=tuple(counts and n >= learned_from for n, (_, counts) in enumerate(pairs)),
        tools=_tools(record.get("tools"), where=where),
    )


def _message(turn: Any, where: str) -> tuple[Mapping[str, Any], bool]:
    """Return a message with the names that templates read, and whether it is learned."""
    if not isinstance(turn, Mapping):
        raise _wrong("message", turn, "an object with `role` and `content`", where=where)
    fields = {name: value for name, value in turn.items() if value is not None}
    given = fields.pop("from", None) if "role" not in fields else fields.pop("role")
    if "value" in fields and "content" not in fields:
        fields["content"] = fields.pop("value")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise _wrong("role", given, f"one of {', '.join(_ROLES)}", where=where)
    counts = [_weight(fields.pop(name), name, where=where) for name in _WEIGHTS if name in fields]
    if role != "assistant" and any(counts):
        raise _wrong(_WEIGHTS[1], True, f"of the assistant, not of {given}", where=where)
    if given == _CALL:
        fields |= {"content": "", "tool_calls": [_call(fields.get("content"), where=where)]}
    if "tool_calls" in fields:
        fields["tool_calls"] = _tool_calls(fields["tool_calls"], where=where)
    fields["content"] = _content(fields, where=where)
    return {"role": role, **fields}, role == "assistant" and all(counts)


def _content(fields: Mapping[str, Any], *, where: str) -> str | list[Any]:
    content = fields.get("content")
    if isinstance(content, str):
        return _text(content, where=where)
    if isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, Mapping) else None
            if not isinstance(text, str):
                raise _wrong("content", part, "parts of text", where=where)
            _text(text, where=where)
        return content
    if content is None and fields.get("tool_calls"):
        return ""
    raise _wrong("content", content, "a text, or parts of text", where=where)


def _text(text: str, *, where: str) -> str:
    check_characters(text, subject="`content`", where=where)
    return text


def _weight(value: Any, name: str, *, where: str) -> bool:
    if value not in (0, 1):
        raise _wrong(name, value, "0 or 1, false or true", where=where)
    return bool(value)


def _call(value: Any, *, where: str) -> dict[str, Any]:
    call = _json(value)
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise _wrong(_CALL, value, "JSON with `name` and `arguments`", where=where)
    return {"type": "function", "function": dict(call)}


def _tool_calls(value: Any, *, where: str) -> list[dict[str, Any]]:
    """Return calls whose arguments are objects, as templates read them; OpenAI has their JSON."""
    if not isinstance(value, list) or not all(isinstance(call, Mapping) for call in value):
        raise _wrong("tool_calls", value, "a list of objects", where=where)
    calls = []
    for call in value:
        function = call.get("function")
        if isinstance(function, Mapping):
            calls.append({**call, "function": _with_arguments(function, where=where)})
        else:
            calls.append(_with_arguments(call, where=where))
    return calls


def _with_arguments(call: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    arguments = call.get("arguments")
    if not isinstance(arguments, str):
        return dict(call)
    fields = _json(arguments) if arguments.strip() else {}
    if not isinstance(fields, Mapping):
        raise _wrong("arguments", arguments, "an object, or its JSON", where=where)
    return {**call, "arguments": fields}


def _tools(value: Any, *, where: str) -> tuple[Mapping[str, Any], ...] | None:
    tools = _json(value) if isinstance(value, str) else value
    if tools in (None, "", []):
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise _wrong("tools", value, "a list of objects, or its JSON", where=where)
    return tuple(tools)


def _json(value: Any) -> Any:
    try:
        return json.loads(value) if value else None
    except (TypeError, ValueError, RecursionError):
        return value


def _list(record: Mapping[str, Any], name: str, where: str) -> list[Any]:
    turns = _json(record[name]) if isinstance(record[name], str) else record[name]
    if not isinstance(turns, list) or not turns:
        raise _wrong(name, turns, "a list of messages", where=where)
    return turns


def _wrong(name: str, value: Any, rule: str, *, where: str) -> DataError:
    return DataError(f"`{name}` must be {rule}: in {where} it is {value!r:.60}; correct it")


_READERS: Final[
    Mapping[RecordLayout, Callable[[Mapping[str, Any], str], Conversation | Prompted]]
] = {
    RecordLayout.MESSAGES: _of_messages,
    RecordLayout.SHAREGPT: _of_sharegpt,
    RecordLayout.ALPACA: _of_alpaca,
    RecordLayout.PROMPT_COMPLETION: _of_prompt,
    RecordLayout.PREFERENCE: _of_preference,
}
