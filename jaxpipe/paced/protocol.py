"""What ranks and the switch tell each other: notes of one size, over a stream."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

_FORM = struct.Struct("<iiiidd")
NOTE_BYTES = _FORM.size


class Kind(IntEnum):
    """What a note is about."""

    HELLO = 0
    """A rank, `source`, is at the other end."""
    POSTED = 1
    """A message is given to its link."""
    JOINED = 2
    """A rank, `source`, has come to the sum `tag`: others may send it their parts."""
    ARRIVES = 3
    """The last byte of a message arrives at this time."""


class Note(NamedTuple):
    """One note; `num_bytes` are those of the message that is meant, `due_s` is emulated time."""

    kind: int
    source: int
    to: int
    tag: int
    num_bytes: float
    due_s: float

    def to_bytes(self) -> bytes:
        """Return what travels.

        >>> note = Note(Kind.POSTED, 0, 3, 7, 8.0, 0.5)
        >>> next(notes_of(note.to_bytes())) == note
        True
        """
        return _FORM.pack(*self)


def notes_of(content: bytes | bytearray) -> Iterator[Note]:
    """Return the notes of a content of whole notes, in order."""
    return (Note(*fields) for fields in _FORM.iter_unpack(content))
