"""Packets between ranks and the switch: fixed size, over a stream."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

_FORMAT = struct.Struct("<iiiidd")  # "<": no padding, so every packet has the same 32 bytes
PACKET_BYTES = _FORMAT.size


class PacketKind(IntEnum):
    """The event that a packet reports."""

    HELLO = 0
    """The rank `source` has connected."""
    POSTED = 1
    """A message is posted to its link."""
    JOINED = 2
    """The rank `source` has joined the all-reduce `tag`: others may send to it."""
    ARRIVES = 3
    """The last byte of a message arrives at `due_s`."""
    WAITS = 4
    """The rank `to` computes nothing until it has the message: sent only if messages block."""
    SENT = 5
    """As `ARRIVES`, for the sender, which was blocked until `due_s`."""


class Packet(NamedTuple):
    """One packet; `num_bytes` is the size of the message that is emulated, `due_s` virtual time."""

    kind: int
    source: int
    to: int
    tag: int
    num_bytes: float
    due_s: float

    def to_bytes(self) -> bytes:
        """Return the packet as it is transmitted.

        >>> packet = Packet(PacketKind.POSTED, 0, 3, 7, 8.0, 0.5)
        >>> PacketReader().feed(packet.to_bytes()) == [packet]
        True
        """
        return _FORMAT.pack(*self)


class PacketReader:
    """Splits a stream into packets; a read may end in the middle of one."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, content: bytes) -> list[Packet]:
        """Return the packets that are complete with `content`, in order."""
        self._pending += content
        num_bytes = len(self._pending) // PACKET_BYTES * PACKET_BYTES
        packets = list(self._unpack(self._pending[:num_bytes]))
        del self._pending[:num_bytes]
        return packets

    @staticmethod
    def _unpack(content: bytearray) -> Iterator[Packet]:
        return (Packet(*fields) for fields in _FORMAT.iter_unpack(content))
