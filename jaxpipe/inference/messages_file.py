"""A file of messages that `jaxpipe generate --chat` answers."""

from pathlib import Path
from typing import Final

from jaxpipe import foreign_file
from jaxpipe.errors import ConfigError
from jaxpipe.runtime.data import Conversation, RecordLayout, layout_of, read_conversation

_MOST_BYTES: Final = 2**26


def read_messages(path: Path) -> Conversation:
    """Return the conversation of a JSON file: a list of messages, or an object that has one.

    Raises:
        ConfigError: it cannot be read, is no conversation, or ends with an answer.
        DataError: a message is none; it names the message and the field.
    """
    try:
        record = foreign_file.read_json(path, most_bytes=_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"`--messages` {path} cannot be read: {foreign_file.reason_of(error)}; give a JSON "
            "file with a list of messages"
        ) from error
    if isinstance(record, list):
        record = {"messages": record}
    layout = layout_of(tuple(record)) if isinstance(record, dict) else None
    if layout is not RecordLayout.MESSAGES and layout is not RecordLayout.SHAREGPT:
        raise ConfigError(
            f"`--messages` {path} must hold a list of messages, or an object with `messages` or "
            "`conversations`; write one"
        )
    conversation = read_conversation(record, layout, where=str(path))
    assert isinstance(conversation, Conversation), layout
    if conversation.messages[-1]["role"] == "assistant":
        raise ConfigError(
            f"`--messages` {path} must end with a message that is not of the assistant, whose "
            "answer comes next; leave out the last one"
        )
    return conversation
