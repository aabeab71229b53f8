"""What an island and the merge server say to each other, once both have shown the key.

::

    island ─► Hello                   its number, its batch, the shapes of what it trains
    server ─► Anchor + tensors        or Wanted: the island offers FirstAnchor + tensors
    server ─► Ask                     at any time: deliver what you have
    island ─► Deliver + tensors       ─► Anchor + tensors
    island ─► Bye

A message is two lengths, a head in JSON, and tensors as safetensors. A reader bounds both lengths,
and takes the tensors that it expects, in their shapes, and no others.
"""

import socket
import struct
import time
from collections.abc import Mapping
from math import prod
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from jaxpipe.collective.codec.codec import Codec
from jaxpipe.foreign_file import parse_json

_LENGTHS = struct.Struct("!IQ")
MOST_HEAD_BYTES = 2**24
"""Of a head; that of `Hello` names all tensors."""
_PER_TENSOR = 1024
"""Bytes of the safetensors header for a tensor, at most."""
_PIECE = 2**20

Shapes = Mapping[str, tuple[int, ...]]
Vectors = Mapping[str, np.ndarray]


class MessageError(ValueError):
    """A message is none of this protocol, or not what is due."""


class Hello(msgspec.Struct, tag_field="kind", tag="hello", forbid_unknown_fields=True):
    """The first message of an island, which has done `step` inner steps.

    `base` is the anchor of what it will deliver next, if the connection broke before it could; it
    continues from a later anchor alone.
    """

    island: int
    islands: int
    step: int
    base: int | None
    batch: int
    seed: int
    codec: str
    shapes: dict[str, tuple[int, ...]]


class Wanted(msgspec.Struct, tag_field="kind", tag="wanted", forbid_unknown_fields=True):
    """The server has no anchor: the parameters of this island are to be the first one."""


class FirstAnchor(msgspec.Struct, tag_field="kind", tag="first", forbid_unknown_fields=True):
    """The parameters of an island."""


class Deliver(msgspec.Struct, tag_field="kind", tag="deliver", forbid_unknown_fields=True):
    """What an island has learned in `steps` inner steps since the anchor number `base`.

    It has done `step` in all.
    """

    base: int
    step: int
    steps: int
    tokens: float


class Anchor(msgspec.Struct, tag_field="kind", tag="anchor", forbid_unknown_fields=True):
    """The anchor with this number."""

    number: int


class Ask(msgspec.Struct, tag_field="kind", tag="ask", forbid_unknown_fields=True):
    """A quorum has delivered: deliver what you have for the anchor behind this one."""

    number: int


class Bye(msgspec.Struct, tag_field="kind", tag="bye", forbid_unknown_fields=True):
    """The island has ended."""


class Refused(msgspec.Struct, tag_field="kind", tag="refused", forbid_unknown_fields=True):
    """The island is not taken, or its last message, with the reason."""

    text: str


Head = Hello | Wanted | FirstAnchor | Deliver | Anchor | Ask | Bye | Refused
_HEAD: Any = Head  # a union is a type for msgspec, and none for a type checker


def keep_alive(connection: socket.socket) -> None:
    """Let the connection break within about a minute after its other host has died."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # else the system's own times, which may be hours
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def send(connection: socket.socket, head: Head, payload: bytes = b"", *, timeout_s: float) -> None:
    """Send a message.

    Raises:
        OSError: the connection is broken, or a piece was not taken within `timeout_s`.
    """
    words = msgspec.json.encode(head)
    connection.settimeout(timeout_s)
    connection.sendall(_LENGTHS.pack(len(words), len(payload)) + words)
    view = memoryview(payload)
    # Piece by piece, so that the timeout is for one: a large model over a slow link takes long.
    for start in range(0, len(view), _PIECE):
        connection.sendall(view[start : start + _PIECE])


def receive(
    connection: socket.socket, *, most_bytes: int, timeout_s: float, idle_s: float
) -> tuple[Head, bytes]:
    """Return the next message, which may begin within `timeout_s`; then a pause may take `idle_s`.

    Raises:
        OSError: the connection is broken or closed, or there is none in time.
        MessageError: it is no message, or has more than `most_bytes` of tensors.
    """
    until_s = time.monotonic() + timeout_s
    lengths = _exactly(connection, _LENGTHS.size, until_s=until_s, idle_s=idle_s)
    num_head, num_payload = _LENGTHS.unpack(lengths)
    if num_head > MOST_HEAD_BYTES or num_payload > most_bytes:
        raise MessageError(f"a message has {num_head} + {num_payload} bytes, more than expected")
    words = _exactly(connection, num_head, until_s=None, idle_s=idle_s)
    payload = _exactly(connection, num_payload, until_s=None, idle_s=idle_s)
    try:
        head: Head = parse_json(words, _HEAD)
        return head, payload
    except ValueError as error:
        raise MessageError(f"a message is none of this protocol: {error}") from error


def payload_bytes(shapes: Shapes) -> int:
    """Return the most bytes that tensors of these shapes take in a message."""
    return sum(4 * prod(shape) + _PER_TENSOR for shape in shapes.values()) + _PER_TENSOR


def packed(tensors: Vectors, codec: Codec | None = None) -> bytes:
    """Return tensors as the payload of a message, encoded where there is a codec."""
    if codec is None:
        return save({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()})
    return save({name: codec.encode(tensor.reshape(-1)) for name, tensor in tensors.items()})


def unpacked(payload: bytes, shapes: Shapes, codec: Codec | None = None) -> dict[str, np.ndarray]:
    """Return the tensors of a payload, which are those of `shapes`, in float32.

    Raises:
        MessageError: they are others, or of another type or shape.
    """
    try:
        tensors = load(payload)
    except (SafetensorError, ValueError, TypeError) as error:
        raise MessageError(f"tensors of a message cannot be read: {error}") from error
    if tensors.keys() != shapes.keys():
        raise MessageError("tensors of a message are of another model")
    read: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        tensor = tensors[name]
        if codec is not None:
            size = prod(shape)
            if tensor.dtype != np.uint8 or tensor.shape != (codec.num_bytes(size=size),):
                raise MessageError(f"tensor {name!r:.80} of a message has another codec")
            tensor = codec.decode(tensor, size=size).reshape(shape)
        if tensor.dtype != np.float32 or tensor.shape != shape:
            raise MessageError(
                f"tensor {name!r:.80} of a message must be float32 {shape}, not "
                f"{tensor.dtype} {tensor.shape}"
            )
        read[name] = tensor
    return read


def _exactly(
    connection: socket.socket, count: int, *, until_s: float | None, idle_s: float
) -> bytes:
    content = bytearray()
    while len(content) < count:
        waits_s = idle_s if until_s is None or content else until_s - time.monotonic()
        if waits_s <= 0:
            raise TimeoutError("no message in time")
        connection.settimeout(waits_s)
        piece = connection.recv(min(_PIECE, count - len(content)))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        content += piece
    return bytes(content)
