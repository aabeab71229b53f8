"""Islands that wait for nobody: a server merges what a quorum of them has learned.

::

    island 0   ─ H inner steps ─ delivers ─┬─ merge ─► anchor 1 ─ inner steps ─ ...
    island 1   ─ H inner steps ─ delivers ─┤           anchor 1 ─
    island 2   ─ fewer steps ─── is asked ─┘           anchor 1 ─
    island 3   ─ one long step ───────────────── delivers, stale ─┬─ merge ─► anchor 2 ─

The first round waits until as many islands as a quorum has are there. Then a round ends when all
that are there have delivered, or a quorum has and the grace time is over. Who has not delivered
when the quorum is reached is asked for what it has after its step. A delivery weighs as much as its
tokens; one for an older anchor is stale, and is discounted.

Source: "Decoupled DiLoCo", arXiv 2604.21428; the outer step is that of `outer_update`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Protocol

import numpy as np

from jaxpipe.collective import CodecKind
from jaxpipe.outer.merge_log import Began, Merge, MergedIsland
from jaxpipe.outer.outer_update import (
    OuterOptimizer,
    OuterState,
    Vector,
    fresh_state,
    outer_step,
    token_weights,
)
from jaxpipe.ranges import Range, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """The section `[quorum]`: this run is one island of several, which a server merges.

    Each island is a run of its own: with its own ranks, plan, folder and checkpoints, and with
    `train.batch` samples a step that no other island reads. `jaxpipe merge` is the server.
    """

    server: str = ""
    """The `merge.json` of the server, or its folder; empty: the run is no island."""
    island: Annotated[int, Range(least=0)] = 0
    """Number of this island, below `islands`."""
    islands: Annotated[int, Range(least=1, most=1024)] = 1
    """The most islands that there are at a time [islands]; it decides which samples each reads."""
    every: Annotated[int, Range(least=1)] = 30
    """Inner steps after which an island delivers without being asked, H [steps]."""
    least: Annotated[int, Range(least=1)] = 1
    """Islands that make a quorum, or all that are there if these are fewer [islands]."""
    grace_s: Annotated[float, Range(least=0, most=86400)] = 5.0
    """Time that the others have to deliver once the quorum is reached [s]."""
    discount: Annotated[float, Range(least=0, most=1)] = 0.5
    """Factor of the weight of a stale delivery, once for each later anchor; 0 leaves it out."""
    learning_rate: Annotated[float, Range(above=0, most=1000)] = 0.7
    """Learning rate of the outer optimizer, eta."""
    momentum: Annotated[float, Range(least=0, below=1)] = 0.9
    """Nesterov momentum of the outer optimizer, mu; 0 is plain SGD."""
    codec: CodecKind = CodecKind.NONE
    """Codec of what an island delivers; the anchor comes back as it is."""
    timeout_s: Annotated[float, Range(least=1, most=86400)] = 600.0
    """How long an island waits for the server, and the server for an island to come back [s]."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.island >= self.islands:
            raise ValueError(
                f"`island` ({self.island}) must be below `islands` ({self.islands}); raise "
                "`islands`, on all islands"
            )
        if self.least > self.islands:
            raise ValueError(
                f"`least` ({self.least}) must be at most `islands` ({self.islands}); lower it"
            )
        if self.codec.facts.needs_feedback:
            raise ValueError(
                f"`codec` is {self.codec}, whose residuals a delivery does not keep; take another"
            )

    @property
    def is_on(self) -> bool:
        """Whether this run is an island."""
        return bool(self.server)

    @property
    def optimizer(self) -> OuterOptimizer:
        """The outer optimizer."""
        return OuterOptimizer(learning_rate=self.learning_rate, momentum=self.momentum)


class ServerLine(Protocol):
    """The line of an island to its merge server; rank 0 has it."""

    num_bytes: int

    def start(
        self, tensors: Mapping[str, np.ndarray], *, step: int
    ) -> tuple[int, dict[str, np.ndarray]]:
        """Return the number of the anchor, and the anchor; `tensors` are the first one's.

        The island has done `step` inner steps.
        """
        ...

    def asked(self, number: int) -> bool:
        """Return whether the server asks for what the island has since the anchor `number`."""
        ...

    def deliver(
        self,
        gradients: Mapping[str, np.ndarray],
        *,
        base: int,
        step: int,
        steps: int,
        tokens: float,
    ) -> tuple[int, dict[str, np.ndarray]]:
        """Deliver what was learned since the anchor `base`; return the next anchor.

        The island has done `steps` inner steps since then, of `step` in all.
        """
        ...

    def close(self) -> None:
        """Say that the island has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What an island has learned since the anchor number `base`: anchor minus parameters, by name.

    `steps` are its inner steps since, of `step` in all; `tokens` the targets that counted in them.
    """

    island: int
    base: int
    step: int
    steps: int
    tokens: float
    gradients: Mapping[str, Vector]
    digest: str

    @property
    def is_finite(self) -> bool:
        """Whether all values are."""
        return all(np.isfinite(gradient).all() for gradient in self.gradients.values())


@dataclass(slots=True, kw_only=True)
class Merger:
    """The anchor, and the deliveries of the round under way; threads that share it need a lock.

    `states` has the anchor and its momentum by name; `version` is the number of the anchor;
    `there` are the islands that take part; `has_begun` says whether as many as a quorum has were
    there at a time.
    """

    config: QuorumConfig
    states: dict[str, OuterState]
    version: int = 0
    there: set[int] = field(default_factory=set[int])
    deliveries: dict[int, Delivery] = field(default_factory=dict[int, Delivery])
    has_begun: bool = False
    _merged: dict[int, int] = field(default_factory=dict[int, int])
    _quorum_s: float | None = None

    def __post_init__(self) -> None:
        """Begin at once where the anchor has moved before: some islands may not come back."""
        self.has_begun = self.version > 0

    def join(self, island: int) -> None:
        """Count an island among those that are there."""
        self.there.add(island)
        self.has_begun |= len(self.there | self.deliveries.keys()) >= self.config.least

    def leave(self, island: int) -> None:
        """No longer wait for an island; what it has delivered stays."""
        self.there.discard(island)

    def deliver(self, delivery: Delivery) -> bool:
        """Take a delivery into the round under way; return False if it has been merged already.

        An island whose connection broke sends its delivery again. One that has come back, and
        delivers twice in a round, replaces its first delivery.

        Raises:
            ValueError: it is not of this model, or of a later anchor.
        """
        self._check(delivery)
        # After a merge an island continues from a later anchor.
        if delivery.base <= self._merged.get(delivery.island, -1):
            return False
        self.deliveries[delivery.island] = delivery
        return True

    def asked(self) -> Collection[int]:
        """Return the islands that are asked for what they have: a quorum is there, they are not."""
        return self.there - self.deliveries.keys() if self._has_quorum else ()

    def is_due(self, *, now_s: float) -> bool:
        """Return whether the round ends; the grace time begins with the first call in a quorum."""
        if not self._has_quorum:
            return False
        if self._quorum_s is None:
            self._quorum_s = now_s
        is_complete = self.there <= self.deliveries.keys()
        return is_complete or now_s - self._quorum_s >= self.config.grace_s

    def merge(self) -> Merge:
        """Take the outer step of the round, and begin the next one.

        Islands are summed in the order of their numbers, so a replay has the same bits.
        """
        merged = merged_islands(self.config, self.version, self.deliveries)
        for name, state in self.states.items():
            total = np.zeros_like(state.anchor)
            for part in merged:
                if part.weight:  # else it may have values that are not finite
                    gradient = self.deliveries[part.island].gradients[name]
                    total += np.float32(part.weight) * gradient
            self.states[name] = outer_step(state, total, self.config.optimizer)
        self.version += 1
        self._merged |= {part.island: part.base for part in merged}
        self.deliveries.clear()
        self._quorum_s = None
        return Merge(anchor=self.version, digest=self.digest(), islands=merged)

    def digest(self) -> str:
        """Return the SHA-256 of the anchor."""
        return digest_of({name: state.anchor for name, state in self.states.items()})

    @property
    def _has_quorum(self) -> bool:
        known = self.there | self.deliveries.keys()
        return self.has_begun and 0 < min(self.config.least, len(known)) <= len(self.deliveries)

    def _check(self, delivery: Delivery) -> None:
        sizes = {name: state.anchor.shape for name, state in self.states.items()}
        delivered = {name: gradient.shape for name, gradient in delivery.gradients.items()}
        if delivered != sizes:
            names = sorted(
                name for name in {*sizes, *delivered} if sizes.get(name) != delivered.get(name)
            )
            raise ValueError(f"`gradients` are of another model: {', '.join(names[:3])} differ")
        if not 0 <= delivery.base <= self.version:
            raise ValueError(f"`base` is {delivery.base}, and the anchor has number {self.version}")
        if not 0 <= delivery.steps <= delivery.step or not 0 <= delivery.tokens < float("inf"):
            raise ValueError(
                "`steps` and `tokens` must be finite, not negative, and `steps` at most `step`"
            )


def quorum_of(began: Began) -> QuorumConfig:
    """Return what a server that has begun has of `[quorum]` that decides its anchors.

    Raises:
        ValueError: a field is out of its range.
    """
    return QuorumConfig(
        islands=began.islands,
        learning_rate=began.learning_rate,
        momentum=began.momentum,
        discount=began.discount,
    )


def digest_of(vectors: Mapping[str, Vector]) -> str:
    """Return the SHA-256 of tensors, in the order of their names."""
    total = sha256()
    for name in sorted(vectors):
        total.update(name.encode())
        total.update(vectors[name].tobytes())
    return total.hexdigest()


def fresh_merger(config: QuorumConfig, anchor: Mapping[str, Vector]) -> Merger:
    """Return a merger before its first round; the anchor is copied."""
    return Merger(
        config=config, states={name: fresh_state(vector) for name, vector in anchor.items()}
    )


def merged_islands(
    config: QuorumConfig, version: int, deliveries: Mapping[int, Delivery]
) -> tuple[MergedIsland, ...]:
    """Return the part of each delivery: its share of the tokens, discounted where it is stale.

    What is not finite, or has no tokens, has the weight 0.
    """
    counted = {
        number: delivery.tokens if delivery.is_finite else 0.0
        for number, delivery in sorted(deliveries.items())
    }
    shares = (
        token_weights(list(counted.values())) if any(counted.values()) else [0.0] * len(counted)
    )
    return tuple(
        MergedIsland(
            island=number,
            base=deliveries[number].base,
            step=deliveries[number].step,
            steps=deliveries[number].steps,
            tokens=deliveries[number].tokens,
            digest=deliveries[number].digest,
            weight=share * config.discount ** (version - deliveries[number].base),
        )
        for number, share in zip(counted, shares, strict=True)
    )
