"""Messages between islands and their server: bit for bit, and strange bytes are one error."""

import socket
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import CodecKind, codec_of
from jaxpipe.run.quorum.messages import (
    Anchor,
    Deliver,
    Head,
    Hello,
    MessageError,
    packed,
    payload_bytes,
    receive,
    send,
    unpacked,
)

SHAPES = {"a": (3, 2), "b.c": (5,), "scalar": ()}
TENSORS = {
    name: np.random.default_rng(1).normal(size=shape).astype(np.float32)
    for name, shape in SHAPES.items()
}


def arrived(content: bytes, *, most_bytes: int) -> tuple[Head, bytes]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.sendall(content)
        theirs.shutdown(socket.SHUT_WR)
        return receive(ours, most_bytes=most_bytes, timeout_s=5, idle_s=5)


def sent(head: Head, payload: bytes = b"") -> bytes:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        send(ours, head, payload, timeout_s=5)
        ours.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: theirs.recv(2**16), b""))


@pytest.mark.parametrize("kind", [CodecKind.NONE, CodecKind.INT8, CodecKind.INT4])
def test_a_message_arrives_as_it_was_sent(kind: CodecKind) -> None:
    codec = codec_of(kind)
    head = Deliver(base=3, step=5, steps=2, tokens=7.0)
    payload = packed(TENSORS, codec)
    assert len(payload) <= payload_bytes(SHAPES)
    back, content = arrived(sent(head, payload), most_bytes=payload_bytes(SHAPES))
    assert back == head
    tensors = unpacked(content, SHAPES, codec)
    for name, tensor in TENSORS.items():
        assert tensors[name].shape == tensor.shape
        if codec is None:
            np.testing.assert_array_equal(tensors[name], tensor)
        else:
            np.testing.assert_allclose(tensors[name], tensor, atol=0.5)


HELLO = Hello(
    island=1, islands=2, step=3, base=None, batch=8, seed=2, codec="none", shapes=dict(SHAPES)
)
MESSAGES = (
    sent(HELLO),
    sent(Anchor(number=4), packed(TENSORS)),
    sent(Deliver(base=0, step=1, steps=1, tokens=1.0), packed(TENSORS)),
)


@settings(max_examples=1000)
@given(
    message=st.sampled_from(MESSAGES),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 3000),
)
def test_strange_bytes_are_an_error_or_a_message_of_the_model(
    message: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(message)
    for place, value in changes:
        content[place % len(content)] = value
    try:
        head, payload = arrived(bytes(content[: cut + 1]), most_bytes=payload_bytes(SHAPES))
        if payload:
            assert {name: t.shape for name, t in unpacked(payload, SHAPES).items()} == SHAPES
        assert isinstance(head, Head)
    except (MessageError, OSError):
        pass


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 12, b"\x00" * 12, b"\x00\x00\x00\x02" + b"\x00" * 8 + b"[]"]
)
def test_what_is_no_message_is_refused(content: bytes) -> None:
    with pytest.raises((MessageError, OSError)):
        arrived(content, most_bytes=100)


def test_tensors_of_another_model_are_refused() -> None:
    for other in (
        {"a": TENSORS["a"]},
        {**TENSORS, "a": TENSORS["a"].T},
        {**TENSORS, "a": TENSORS["a"].astype(np.float64)},
    ):
        with pytest.raises(MessageError):
            unpacked(packed(other), SHAPES)
