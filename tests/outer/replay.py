"""Runs an outer loop of `jaxpipe.outer` in one process: every island in turn, no transport."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxpipe.outer import (
    OuterAction,
    OuterConfig,
    OuterOptimizer,
    OuterState,
    OuterTimetable,
    fragments,
    fresh_state,
    mean_step,
    mixed,
    outer_gradient,
    outer_step,
)

Parameters = dict[str, np.ndarray]


@dataclass(kw_only=True)
class Replay:
    """The islands, their common state by fragment, and the sums under way."""

    config: OuterConfig
    weights: Sequence[float]
    table: OuterTimetable
    names: tuple[tuple[str, ...], ...]
    locals_: list[Parameters]
    states: list[OuterState]
    sums: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def anchor(self) -> Parameters:
        """The anchor of all fragments, by name."""
        found: Parameters = {}
        for names, state in zip(self.names, self.states, strict=True):
            found |= _unpacked(state.anchor, names, self.locals_[0])
        return found

    def step(self, done: int, inner: Callable[[Parameters, int, int], Parameters]) -> None:
        """Train every island for one inner step, and do what is due after it."""
        for island, local in enumerate(self.locals_):
            self.locals_[island] = inner(local, island, done - 1)
        for action, fragment in self.table.events(done):
            if action is OuterAction.SEND:
                self._send(fragment)
            else:
                self._apply(fragment, action, is_last=done == self.table.num_steps)

    def _send(self, fragment: int) -> None:
        anchor = self.states[fragment].anchor
        parts = [
            outer_gradient(anchor, _packed(local, self.names[fragment]), weight=weight)
            for local, weight in zip(self.locals_, self.weights, strict=True)
        ]
        self.sums[fragment] = sum(parts[1:], parts[0])

    def _apply(self, fragment: int, action: OuterAction, *, is_last: bool) -> None:
        total, state = self.sums.pop(fragment), self.states[fragment]
        optimizer = OuterOptimizer(
            learning_rate=self.config.learning_rate, momentum=self.config.momentum
        )
        after = (
            mean_step(state, total)
            if action is OuterAction.AVERAGE
            else outer_step(state, total, optimizer)
        )
        self.states[fragment] = after
        kept = 0.0 if is_last else self.config.local_fraction
        for local in self.locals_:
            vector = mixed(_packed(local, self.names[fragment]), after.anchor, local_fraction=kept)
            local.update(_unpacked(vector, self.names[fragment], local))


def replay(
    start: Parameters, config: OuterConfig, *, num_steps: int, weights: Sequence[float] = ()
) -> Replay:
    """Return the state before the first step, with equal weights by default."""
    names = fragments(start, num_fragments=config.fragments)
    return Replay(
        config=config,
        weights=weights or [1 / config.islands] * config.islands,
        table=OuterTimetable(
            every=config.every,
            num_fragments=config.fragments,
            delay=config.delay,
            num_steps=num_steps,
        ),
        names=names,
        locals_=[dict(start) for _ in range(config.islands)],
        states=[fresh_state(_packed(start, each)) for each in names],
    )


def _packed(tree: Parameters, names: Sequence[str]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *(tree[name].ravel() for name in names)])


def _unpacked(vector: np.ndarray, names: Sequence[str], like: Parameters) -> Parameters:
    found, start = {}, 0
    for name in names:
        size = like[name].size
        found[name] = vector[start : start + size].reshape(like[name].shape)
        start += size
    return found
