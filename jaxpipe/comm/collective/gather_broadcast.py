"""Gather, broadcast and exchange of bytes, and the barrier, over any transport.

For control messages (reports, plans, traces), not for gradients: the root exchanges messages with
every rank itself.
"""

import jax
import msgspec
import numpy as np

from jaxpipe.collective.kinds import BarrierKind
from jaxpipe.collective.pairwise import barrier_phases
from jaxpipe.collective.step import weave
from jaxpipe.comm.collective.execute_steps import Execution, Formats
from jaxpipe.comm.collective.wire_format import ValueFormat
from jaxpipe.comm.transport import Transport

_LENGTH = jax.ShapeDtypeStruct((1,), np.dtype(np.int64))


def gather_bytes(
    transport: Transport, payload: bytes, *, root: int, tag: int, timeout_s: float
) -> tuple[bytes, ...] | None:
    """Return the payloads of all ranks, by rank, on `root`, and None on the others.

    Lengths, which may differ, precede the payloads. Each message may take `timeout_s`.

    >>> from jaxpipe.comm.local import run_ranks
    >>> run_ranks(2, lambda transport: gather_bytes(
    ...     transport, b"x" * transport.rank, root=0, tag=0, timeout_s=1.0))
    [(b'', b'x'), None]

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    if transport.rank != root:
        send_bytes(transport, payload, to=(root,), tag=tag, timeout_s=timeout_s)
        return None
    others = [rank for rank in range(transport.num_ranks) if rank != root]
    # All posted before the first is waited for: ranks may send in any order.
    lengths = [transport.receive(_LENGTH, source=rank, tag=tag) for rank in others]
    receivings = {
        rank: transport.receive(_payload_of(length.wait(timeout_s=timeout_s)), source=rank, tag=tag)
        for rank, length in zip(others, lengths, strict=True)
    }
    return tuple(
        payload if rank == root else _bytes_of(receivings[rank].wait(timeout_s=timeout_s))
        for rank in range(transport.num_ranks)
    )


def broadcast_bytes(
    transport: Transport, payload: bytes | None, *, root: int, tag: int, timeout_s: float
) -> bytes:
    """Return the payload of `root` on every rank; the other ranks pass None.

    >>> from jaxpipe.comm.local import run_ranks
    >>> run_ranks(2, lambda transport: broadcast_bytes(
    ...     transport, b"plan" if transport.rank == 1 else None, root=1, tag=0, timeout_s=1.0))
    [b'plan', b'plan']

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    if transport.rank == root:
        assert payload is not None, "the root needs a payload to broadcast"
        others = tuple(rank for rank in range(transport.num_ranks) if rank != root)
        send_bytes(transport, payload, to=others, tag=tag, timeout_s=timeout_s)
        return payload
    assert payload is None, f"rank {transport.rank} passes a payload, but the root is {root}"
    return receive_bytes(transport, source=root, tag=tag, timeout_s=timeout_s)


def exchange_bytes(
    transport: Transport, payload: bytes, *, tag: int, timeout_s: float
) -> tuple[bytes, ...]:
    """Return the payloads of all ranks, by rank, on every rank; rank 0 gathers and broadcasts them.

    >>> from jaxpipe.comm.local import run_ranks
    >>> run_ranks(2, lambda transport: exchange_bytes(
    ...     transport, b"x" * transport.rank, tag=0, timeout_s=1.0))
    [(b'', b'x'), (b'', b'x')]

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    gathered = gather_bytes(transport, payload, root=0, tag=tag, timeout_s=timeout_s)
    packed = None if gathered is None else msgspec.msgpack.encode(gathered)
    everything = broadcast_bytes(transport, packed, root=0, tag=tag, timeout_s=timeout_s)
    return msgspec.msgpack.decode(everything, type=tuple[bytes, ...])


def first_text(transport: Transport, text: str, *, tag: int, timeout_s: float) -> str:
    """Return on all ranks the text of the first rank whose text is not empty, if any is.

    So all ranks decide alike about a problem that only some of them have.

    >>> from jaxpipe.comm.local import run_ranks
    >>> texts = ["", "disk full", "no such file"]
    >>> run_ranks(3, lambda t: first_text(t, texts[t.rank], tag=0, timeout_s=1.0))
    ['disk full', 'disk full', 'disk full']

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    gathered = gather_bytes(transport, text.encode(), root=0, tag=tag, timeout_s=timeout_s)
    first = None if gathered is None else next(filter(None, gathered), b"")
    return broadcast_bytes(transport, first, root=0, tag=tag, timeout_s=timeout_s).decode()


def barrier(
    transport: Transport,
    *,
    tag: int,
    timeout_s: float,
    members: tuple[int, ...] | None = None,
    kind: BarrierKind = BarrierKind.DISSEMINATION,
) -> None:
    """Return once every member has called this; each of the log2(members) rounds has `timeout_s`.

    `members` are all ranks by default. The rounds are those of `barrier_phases`.

    Raises:
        DeadlineError: a member did not come in time.
        TransportError: a message could not be moved, or the job was aborted.
    """
    members = members or tuple(range(transport.num_ranks))
    nothing = np.zeros(0, np.uint8)
    formats = Formats(near=ValueFormat(nothing.dtype), far=ValueFormat(nothing.dtype))
    execution = Execution(transport, nothing, formats, tag=tag, timeout_s=timeout_s)
    execution.run(list(weave([barrier_phases(members, transport.rank, kind)])))


def send_bytes(
    transport: Transport, payload: bytes, *, to: tuple[int, ...], tag: int, timeout_s: float
) -> None:
    """Send a payload of any length to some ranks, for `receive_bytes`.

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    length = np.array([len(payload)], np.int64)
    content = np.frombuffer(payload, np.uint8)
    sendings = [transport.send(part, to=rank, tag=tag) for rank in to for part in (length, content)]
    for sending in sendings:
        sending.wait(timeout_s=timeout_s)


def receive_bytes(transport: Transport, *, source: int, tag: int, timeout_s: float) -> bytes:
    """Return the payload that a rank sends by `send_bytes`.

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    length = transport.receive(_LENGTH, source=source, tag=tag).wait(timeout_s=timeout_s)
    receiving = transport.receive(_payload_of(length), source=source, tag=tag)
    return _bytes_of(receiving.wait(timeout_s=timeout_s))


def _payload_of(length: np.ndarray | jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((int(length[0]),), np.dtype(np.uint8))


def _bytes_of(content: np.ndarray | jax.Array) -> bytes:
    return np.asarray(content).tobytes()
