"""Outer steps between islands from their definitions: whole tensors on one device, no messages.

`jaxpipe.outer.outer_update` and `eager_step` have the formulas and their sources. The timetable and
the fragments are those of the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxpipe.outer import OuterAction, OuterConfig, fragment_of
from jaxpipe.runtime.outer.outer_loop import timetable_of
from jaxpipe.verify.one_device import Tensors

OuterSum = Callable[[int, Sequence[Tensors]], Tensors]
"""Returns the sum over islands of the tensors of a fragment, by its number."""


def exact_sum(fragment: int, of_islands: Sequence[Tensors]) -> Tensors:  # noqa: ARG001
    """Return the sum over islands of each tensor."""
    return {
        name: np.sum([tensors[name] for tensors in of_islands], axis=0) for name in of_islands[0]
    }


@dataclass(slots=True, kw_only=True)
class IslandLead:
    """What an island is ahead of the anchor with eager updates, by the names of tensors."""

    sent: Tensors = field(default_factory=dict)
    ahead: Tensors = field(default_factory=dict)
    momentum: Tensors = field(default_factory=dict)


class OneDeviceIslands:
    """The anchor of all islands; `weights` are their parts of the batch, `summed` their sums."""

    def __init__(
        self,
        outer: OuterConfig,
        anchor: Tensors,
        *,
        weights: Sequence[float],
        num_steps: int,
        summed: OuterSum = exact_sum,
    ) -> None:
        self._summed = summed
        self._outer = outer
        self._timetable = timetable_of(outer, num_steps=num_steps)
        self._weights = [_rounded(weight) for weight in weights]
        self._anchor = dict(anchor)
        self._starts = [dict(anchor) for _ in weights]
        self._leads = [IslandLead() for _ in weights]
        self._sums: dict[str, np.ndarray] = {}
        self.momentum: Tensors = {name: np.zeros_like(array) for name, array in anchor.items()}

    def after_step(self, parameters: Sequence[Tensors], *, done: int) -> list[Tensors]:
        """Return the parameters of all islands after what is due after `done` inner steps."""
        new = [dict(tensors) for tensors in parameters]
        events = self._timetable.events(done)
        is_last = done == self._timetable.num_steps
        for position, (action, fragment) in enumerate(events):
            is_sent_next = (OuterAction.SEND, fragment) in events[position:]
            if action is OuterAction.SEND:
                is_due = self._timetable.is_due(fragment, done)
                self._send(fragment, new, is_last=is_last, from_anchor=is_last and not is_due)
                continue
            for name in self._names(fragment):
                if name in self._sums:
                    self._apply(name, averages=action is OuterAction.AVERAGE)
                    if not (self._outer.eager and is_sent_next):
                        self._mix(name, new, is_last=is_last)
        return new

    def _names(self, fragment: int) -> list[str]:
        num_fragments = self._outer.fragments
        return [
            name
            for name in self._anchor
            if fragment_of(name, num_fragments=num_fragments) == fragment
        ]

    def _send(self, fragment: int, new: list[Tensors], *, is_last: bool, from_anchor: bool) -> None:
        starts = [self._anchor if from_anchor else tensors for tensors in self._starts]
        sent = [
            {name: weight * (start[name] - tensors[name]) for name in self._names(fragment)}
            for weight, start, tensors in zip(self._weights, starts, new, strict=True)
        ]
        self._sums |= self._summed(fragment, sent)
        if not self._outer.eager or is_last:
            return
        for name in self._names(fragment):
            self._go_ahead(name, new, [gradients[name] for gradients in sent])

    def _go_ahead(self, name: str, new: list[Tensors], sent: Sequence[np.ndarray]) -> None:
        rate, mu = _rounded(self._outer.learning_rate), _rounded(self._outer.momentum)
        for number, (lead, gradient) in enumerate(zip(self._leads, sent, strict=True)):
            change = gradient - lead.sent.get(name, 0.0)
            momentum = mu * lead.momentum.get(name, 0.0) + change
            lead.ahead[name] = lead.ahead.get(name, 0.0) - rate * (change + mu * momentum)
            lead.momentum[name], lead.sent[name] = momentum, gradient
            new[number][name] = self._anchor[name] + lead.ahead[name]
            self._starts[number][name] = new[number][name]

    def _apply(self, name: str, *, averages: bool) -> None:
        total = self._sums.pop(name)
        rate, mu = _rounded(self._outer.learning_rate), _rounded(self._outer.momentum)
        if averages:
            self._anchor[name] = self._anchor[name] - total
        else:
            self.momentum[name] = mu * self.momentum[name] + total
            self._anchor[name] = self._anchor[name] - rate * (total + mu * self.momentum[name])
        if not self._outer.eager:
            for tensors in self._starts:
                tensors[name] = self._anchor[name]

    def _mix(self, name: str, new: list[Tensors], *, is_last: bool) -> None:
        local = 0.0 if is_last else _rounded(self._outer.local_fraction)
        rest = 1.0 if is_last else _rounded(1 - _rounded(self._outer.local_fraction))
        for tensors in new:
            tensors[name] = local * tensors[name] + rest * self._anchor[name]


def _rounded(number: float) -> float:
    """Return a number as outer steps have it, which is float32."""
    return float(np.float32(number))
