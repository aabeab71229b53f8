"""How survivors of a lost rank get the state of training from each other, for any other cut.

::

    rank 0 (was 0)  holds layers 0-1   needs 0     │  0 ── layer 1 ──► 1
    rank 1 (was 1)  holds layers 2-3   needs 1-2   │  1 ── layer 3 ──► 2
    rank 2 (was 3)  holds layers 2-3   needs 3     │     but it holds that already: nothing moves

A rank that is lost takes its stage along; the replica of that stage has the same, since no rank
updates before all have summed their gradients. Tensors have the names that checkpoints give them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from jaxpipe.comm import (
    BROADCAST_TAG,
    GATHER_TAG,
    STATE_TRANSFER_TAG,
    Transport,
    broadcast_bytes,
    gather_bytes,
)
from jaxpipe.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a rank holds, after how many steps, and what it needs to go on.

    `tensors` maps names to dtype and shape. A rank that holds nothing whole has no `step`.
    """

    step: int | None
    metadata: Mapping[str, Any]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A tensor that goes from one rank to another."""

    name: str
    source: int
    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferredState:
    """The state of training after some steps, as far as this rank needs it."""

    step: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return some tensors by their names.

        Raises:
            CheckpointError: one of them was not handed over.
        """
        wanted = tuple(names)
        missing = [name for name in wanted if name not in self.tensors]
        if missing:
            raise CheckpointError(
                f"`survive` must keep the whole state, and no rank has handed over {missing[0]}; "
                "go on with --resume from the newest checkpoint"
            )
        return {name: self.tensors[name] for name in wanted}


def transfer_state(
    transport: Transport, offer: Offer, tensors: Mapping[str, np.ndarray], *, timeout_s: float
) -> TransferredState | None:
    """Return what this rank needs, from whoever holds it; all ranks call this.

    It is the state after the most steps that is whole among them; None on all ranks if none is.

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved.
    """
    offers = _exchange(transport, offer, timeout_s=timeout_s)
    step = newest_whole_step(offers)
    if step is None:
        return None
    first = next(each for each in offers if each.step == step)
    return TransferredState(
        step=step,
        metadata=first.metadata,
        tensors=_move(transport, offers, tensors, step=step, timeout_s=timeout_s),
    )


def newest_whole_step(offers: Sequence[Offer]) -> int | None:
    """Return the highest step of which ranks together hold all that is needed, if any.

    >>> def offer(step, holds, needs):
    ...     tensors = {name: ("float32", (1,)) for name in holds}
    ...     return Offer(step=step, metadata={}, tensors=tensors, needs=tuple(needs))
    >>> newest_whole_step([offer(7, "a", "b"), offer(7, "b", "a"), offer(8, "a", "")])
    7
    >>> newest_whole_step([offer(7, "a", "b"), offer(8, "b", "a")])
    """
    wanted = {name for offer in offers for name in offer.needs}
    for step in sorted({offer.step for offer in offers if offer.step is not None}, reverse=True):
        held = {name for offer in offers if offer.step == step for name in offer.tensors}
        if wanted <= held:
            return step
    return None


def moves(offers: Sequence[Offer], *, step: int) -> tuple[Move, ...]:
    """Return who sends what to whom, the same on all ranks: of several, who has sent least so far.

    >>> two = {"a": ("float32", (1,)), "b": ("float32", (1,))}
    >>> holder = Offer(step=7, metadata={}, tensors=two, needs=())
    >>> needy = Offer(step=6, metadata={}, tensors=two, needs=("a", "b"))
    >>> [(move.name, move.source, move.to) for move in moves([holder, holder, needy], step=7)]
    [('a', 0, 2), ('b', 1, 2)]
    """
    holders = [offer.tensors if offer.step == step else {} for offer in offers]
    num_sent: Counter[int] = Counter()
    found: list[Move] = []
    for to, offer in enumerate(offers):
        for name in offer.needs:
            if name in holders[to]:
                continue
            sources = (rank for rank, held in enumerate(holders) if name in held)
            source = min(sources, key=lambda rank: (num_sent[rank], rank))
            num_sent[source] += 1
            found.append(Move(name=name, source=source, to=to))
    return tuple(found)


def _exchange(transport: Transport, offer: Offer, *, timeout_s: float) -> list[Offer]:
    gathered = gather_bytes(
        transport, msgspec.msgpack.encode(offer), root=0, tag=GATHER_TAG, timeout_s=timeout_s
    )
    everything = None
    if gathered is not None:
        everything = msgspec.msgpack.encode(
            [msgspec.msgpack.decode(each, type=Offer) for each in gathered]
        )
    told = broadcast_bytes(transport, everything, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
    return msgspec.msgpack.decode(told, type=list[Offer])


def _move(
    transport: Transport,
    offers: Sequence[Offer],
    tensors: Mapping[str, np.ndarray],
    *,
    step: int,
    timeout_s: float,
) -> dict[str, np.ndarray]:
    """Send and receive what is to be moved, in one order on all ranks; return what is needed."""
    rank, planned = transport.rank, moves(offers, step=step)
    receivings = {
        move.name: transport.receive(
            _like(offers[move.source], move.name), source=move.source, tag=STATE_TRANSFER_TAG
        )
        for move in planned
        if move.to == rank
    }
    sendings = [
        transport.send(np.ascontiguousarray(tensors[move.name]), to=move.to, tag=STATE_TRANSFER_TAG)
        for move in planned
        if move.source == rank
    ]
    arrived = {
        name: np.asarray(receiving.wait(timeout_s=timeout_s))
        for name, receiving in receivings.items()
    }
    for sending in sendings:
        sending.wait(timeout_s=timeout_s)
    return {
        name: arrived[name] if name in arrived else tensors[name] for name in offers[rank].needs
    }


def _like(offer: Offer, name: str) -> jax.ShapeDtypeStruct:
    dtype, shape = offer.tensors[name]
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
