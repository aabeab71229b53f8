"""A checkpoint of islands as if all of them had met: for other islands, or for none.

::

    M islands have saved               what other islands start from
    sums under way               ─►    are applied to anchor and momentum
    parameters of each island    ─►    their mean is the anchor, and the parameters of all
    what is frozen               ─►    stays
    moments of each island       ─►    their mean, on all

What an island has trained since its last outer step is kept, also that of an island that does not
continue; a sum under way replaces what it would have replaced later. One that joins starts where
all others start, so it counts once, and no round begins with an outer gradient that is another's.
The anchor moves to the mean without the outer learning rate and momentum, as at the end of a run:
another step with them, after few inner steps, would move it too far. Loss scale and skipped steps
are those of the first island.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.outer import (
    OuterConfig,
    OuterOptimizer,
    OuterState,
    fragment_of,
    mean_step,
    mixed,
    outer_gradient,
    outer_step,
    saved_outer,
    token_weights,
)
from jaxpipe.runtime.outer.outer_tensor_names import (
    COUNTERS,
    IN_FLIGHT,
    IN_SYNC,
    MOMENTUM,
    PENDING,
    SHARES,
    counters,
    is_moment,
    of_island,
    split_island,
)
from jaxpipe.runtime.train_snapshot import Saved


def met(saved: Saved, outer: OuterConfig) -> Saved:
    """Return a saved state for a run with the section `outer`: the same if its islands stay.

    Raises:
        CheckpointError: the metadata are damaged.
    """
    before = saved_outer(saved.metadata)
    if before.islands == outer.islands:
        return saved
    try:
        shares = msgspec.convert(
            saved.metadata.get(SHARES, [1.0] * before.islands), tuple[float, ...]
        )
        if len(shares) != before.islands:
            raise msgspec.ValidationError(f"{len(shares)} shares of {before.islands} islands")
        in_flight = msgspec.convert(saved.metadata.get(IN_FLIGHT, []), tuple[int, ...])
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"`metadata` of step {saved.step} does not say what its islands are: {error}; resume "
            "from an older step"
        ) from error
    optimizer = outer if outer.is_on else before
    return MetIslands(
        saved=saved,
        before=before,
        optimizer=OuterOptimizer(
            learning_rate=optimizer.learning_rate, momentum=optimizer.momentum
        ),
        shares=token_weights(shares) if shares else (),
        in_flight=in_flight,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetIslands:
    """The state after all islands have met, under the names of any islands, or of none.

    Of a run without islands everything is as it is, with an outer momentum of 0.
    """

    saved: Saved
    before: OuterConfig
    optimizer: OuterOptimizer
    shares: tuple[float, ...]
    in_flight: tuple[int, ...]

    @property
    def step(self) -> int:
        """The number of inner steps trained."""
        return self.saved.step

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata, of islands that are in sync."""
        return {**self.saved.metadata, IN_SYNC: True, IN_FLIGHT: []}

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Those of the islands before they met."""
        return self.saved.tensors

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return some tensors by their names.

        Raises:
            CheckpointError: one of them is missing or corrupt.
        """
        # One after the other: of each, all islands are in memory at once.
        return {name: self._read(split_island(name)[1]) for name in names}

    def _read(self, name: str) -> np.ndarray:
        if name == COUNTERS:
            is_on = self.before.is_on
            return self._one(of_island(0, name)) if is_on else counters(self.saved.metadata)
        if name.startswith(MOMENTUM):
            return self._state(name.removeprefix(MOMENTUM)).momentum
        if not self.before.is_on:
            return self._one(name)
        if is_moment(name):
            return _mean(self._of_each(name), self.shares)
        return self._state(name).anchor

    def _state(self, name: str) -> OuterState:
        """Return anchor and momentum of a parameter."""
        anchor = self._one(name)
        if not self.before.is_on or MOMENTUM + name not in self.saved.tensors:  # it was frozen
            return OuterState(anchor=anchor, momentum=np.zeros_like(anchor))
        in_sync = bool(self.saved.metadata.get(IN_SYNC, False))
        local = [anchor] * len(self.shares) if in_sync else self._of_each(name)
        state = OuterState(anchor=anchor, momentum=self._one(MOMENTUM + name))
        if fragment_of(name, num_fragments=self.before.fragments) in self.in_flight:
            state = outer_step(state, self._one(PENDING + name), self.optimizer)
            # With eager updates nothing of what an island has trained gives way to a sum.
            fraction = 1.0 if self.before.eager else self.before.local_fraction
            local = [mixed(tensors, state.anchor, local_fraction=fraction) for tensors in local]
        total = sum(
            (
                outer_gradient(state.anchor, tensors, weight=share)
                for tensors, share in zip(local, self.shares, strict=True)
            ),
            np.zeros_like(state.anchor),
        )
        return mean_step(state, total)

    def _of_each(self, name: str) -> list[np.ndarray]:
        return [self._one(of_island(number, name)) for number in range(len(self.shares))]

    def _one(self, name: str) -> np.ndarray:
        return self.saved.read([name])[name]


def _mean(values: list[np.ndarray], weights: tuple[float, ...]) -> np.ndarray:
    parts = (np.float32(weight) * value for value, weight in zip(values, weights, strict=True))
    return sum(parts, np.zeros_like(values[0]))
