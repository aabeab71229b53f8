"""The log file of a merge server, `merges.jsonl`: one JSON object per line and event."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from jaxpipe.errors import ConfigError
from jaxpipe.foreign_file import parse_json, read_lines, reason_of
from jaxpipe.outer.merge_lineage import Lineage, lineage_of
from jaxpipe.outer.merge_log import MERGE_LOG_FORMAT, Began, MergeEvent
from jaxpipe.outer.quorum import quorum_of

LOG_FILE: Final = "merges.jsonl"
_MOST_BYTES: Final = 2**30
_EVENT: Any = MergeEvent  # a union is a type for msgspec, and none for a type checker


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """What a log tells: its events, what islands have trained, and how the server first began."""

    events: tuple[MergeEvent, ...]
    lineage: Lineage
    began: Began


class MergeLog:
    """Appends events to the log in a folder; threads that share it need a lock."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / LOG_FILE).open("ab")

    def add(self, event: MergeEvent) -> None:
        """Append an event; it is in the file when this returns.

        Raises:
            OSError: it cannot be written.
        """
        self._file.write(msgspec.json.encode(event) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_log(folder: Path) -> tuple[MergeEvent, ...]:
    """Return the events of the log in the folder of a merge server.

    Raises:
        ConfigError: there is none, or a line is no event of this format.
    """
    path = folder / LOG_FILE
    events: list[MergeEvent] = []
    try:
        for line in read_lines(path, most_bytes=_MOST_BYTES):
            event: MergeEvent = parse_json(line, _EVENT)
            if isinstance(event, Began) and event.format != MERGE_LOG_FORMAT:
                raise ValueError(f"`format` is {event.format}, and must be {MERGE_LOG_FORMAT}")
            events.append(event)
    except OSError as error:
        raise ConfigError(
            f"cannot read the log {path}: {reason_of(error)}; name the folder of a merge server"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"line {len(events) + 1} of the log {path} is no event of a merge server of this "
            f"version: {error}; replay it as it was written, with the version that wrote it"
        ) from error
    if not events:
        raise ConfigError(f"`{LOG_FILE}` in {folder} is empty: no merge server has begun there")
    return tuple(events)


def read_run(folder: Path) -> LoggedRun:
    """Return the run that the log in the folder of a merge server tells.

    Raises:
        ConfigError: there is none, or a line cannot follow those before it.
    """
    try:
        return logged_run(read_log(folder))
    except ValueError as error:
        raise ConfigError(
            f"`{LOG_FILE}` in {folder} tells no run: {error}; replay it as it was written"
        ) from error


def logged_run(events: Sequence[MergeEvent]) -> LoggedRun:
    """Return the run that some events tell.

    Raises:
        ValueError: one cannot follow those before it, or a field is out of its range, or what a
            server shares with its islands has changed when it was started again.
    """
    lineage = lineage_of(events)
    starts = [event for event in events if isinstance(event, Began)]
    for began in starts:
        quorum_of(began)
        for name in ("codec", "batch", "seed"):
            if getattr(began, name) != getattr(starts[0], name):
                raise ValueError(f"`{name}` was changed when the server was started again")
    return LoggedRun(events=tuple(events), lineage=lineage, began=starts[0])
