"""Transfer of the training state between the survivors of a loss, for any new partition of layers.

::

    rank 0 (was 0)  has layers 0-1   needs 0     │  0 ── layer 1 ──► 1
    rank 1 (was 1)  has layers 2-3   needs 1-2   │
    rank 2 (was 3)  has layers 2-3   needs 3     │  nothing: rank 2 has layer 3 already

The state of a lost stage comes from its replica, which has the same: no rank updates before the
gradients of all are reduced. Tensors have the names that they have in checkpoints.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from jaxpipe.comm import GATHER_TAG, STATE_TRANSFER_TAG, Transport, exchange_bytes
from jaxpipe.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The tensors that a rank has, after `step` steps, and those that it needs to continue.

    `tensors` maps names to dtype and shape. A rank without complete tensors has no `step`.
    """

    step: int | None
    metadata: Mapping[str, Any]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The transfer of one tensor."""

    name: str
    source: int
    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferredState:
    """The part of the training state, after `step` steps, that this rank needs."""

    step: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return some tensors by their names.

        Raises:
            CheckpointError: one of them was not transferred.
        """
        wanted = tuple(names)
        missing = [name for name in wanted if name not in self.tensors]
        if missing:
            raise CheckpointError(
                f"`survive` needs the whole state, and no rank has transferred {missing[0]}; "
                "resume from the newest checkpoint with --resume"
            )
        return {name: self.tensors[name] for name in wanted}


def transfer_state(
    transport: Transport, offer: Offer, tensors: Mapping[str, np.ndarray], *, timeout_s: float
) -> TransferredState | None:
    """Return the state that this rank needs, from the ranks that have it; all ranks call this.

    Of the states that are complete among all ranks, the latest; None on all ranks if there is none.

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved.
    """
    offers = _exchange(transport, offer, timeout_s=timeout_s)
    step = newest_whole_step(offers)
    if step is None:
        return None
    # Metadata are equal on all ranks that have this step: those of the first will do.
    first = next(candidate for candidate in offers if candidate.step == step)
    return TransferredState(
        step=step,
        metadata=first.metadata,
        tensors=_move(transport, offers, tensors, step=step, timeout_s=timeout_s),
    )


def newest_whole_step(offers: Sequence[Offer]) -> int | None:
    """Return the latest step of which the ranks together have all needed tensors, if any.

    >>> def offer(step, has, needs):
    ...     tensors = {name: ("float32", (1,)) for name in has}
    ...     return Offer(step=step, metadata={}, tensors=tensors, needs=tuple(needs))
    >>> newest_whole_step([offer(7, "a", "b"), offer(7, "b", "a"), offer(8, "a", "")])
    7
    >>> newest_whole_step([offer(7, "a", "b"), offer(8, "b", "a")])
    """
    wanted = {name for offer in offers for name in offer.needs}
    for step in sorted({offer.step for offer in offers if offer.step is not None}, reverse=True):
        available = {name for offer in offers if offer.step == step for name in offer.tensors}
        if wanted <= available:
            return step
    return None


def moves(offers: Sequence[Offer], *, step: int) -> tuple[Move, ...]:
    """Return all transfers, the same on all ranks; of several sources, the one with fewest so far.

    >>> two = {"a": ("float32", (1,)), "b": ("float32", (1,))}
    >>> holder = Offer(step=7, metadata={}, tensors=two, needs=())
    >>> needy = Offer(step=6, metadata={}, tensors=two, needs=("a", "b"))
    >>> [(move.name, move.source, move.to) for move in moves([holder, holder, needy], step=7)]
    [('a', 0, 2), ('b', 1, 2)]
    """
    holders = [offer.tensors if offer.step == step else {} for offer in offers]
    num_sent: Counter[int] = Counter()
    needed_moves: list[Move] = []
    for to, offer in enumerate(offers):
        for name in offer.needs:
            if name in holders[to]:
                continue
            sources = (rank for rank, tensors in enumerate(holders) if name in tensors)
            # The rank breaks ties: all ranks have to choose alike.
            source = min(sources, key=lambda rank: (num_sent[rank], rank))
            num_sent[source] += 1
            needed_moves.append(Move(name=name, source=source, to=to))
    return tuple(needed_moves)


def _exchange(transport: Transport, offer: Offer, *, timeout_s: float) -> list[Offer]:
    offers = exchange_bytes(
        transport, msgspec.msgpack.encode(offer), tag=GATHER_TAG, timeout_s=timeout_s
    )
    return [msgspec.msgpack.decode(text, type=Offer) for text in offers]


def _move(
    transport: Transport,
    offers: Sequence[Offer],
    tensors: Mapping[str, np.ndarray],
    *,
    step: int,
    timeout_s: float,
) -> dict[str, np.ndarray]:
    """Send and receive tensors, in one order on all ranks; return those that this rank needs.

    Receives are posted first, so that no send waits for memory on the other side. All messages have
    one tag: MPI delivers those between two ranks in the order in which they were sent.
    """
    # Each rank plans all moves from the same offers: they need no further message.
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
