"""A profile compares microbatch sizes correctly on a machine whose speed drifts."""

from collections.abc import Mapping
from typing import Any

import pytest

from jaxpipe.profile import brief_parts
from jaxpipe.profile.brief_parts import stage_seconds
from jaxpipe.profile.timing import Clock
from jaxpipe.schedule import Op

OPS = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
HALF_AS_FAST_S = 20.0
"""When a call takes twice as long as at first [s]."""


class SlowingMachine:
    """A clock, and work that takes the longer the later it is."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> float:
        taken_s = seconds * (1 + self.now_s / HALF_AS_FAST_S)
        self.now_s += taken_s
        return taken_s


def test_a_machine_that_slows_down_slows_all_sizes_alike(monkeypatch: pytest.MonkeyPatch):
    machine = SlowingMachine()

    class Stage:
        """A stage whose calls take this many seconds on the machine as it is at first."""

        def __init__(self, seconds: float, weights: None) -> None:
            del weights
            self.call_s = seconds

        def seconds(self, clock: Clock) -> Mapping[Op, float]:
            assert clock is machine
            return {op: machine.work(self.call_s) for op in OPS}

    monkeypatch.setattr(brief_parts, "BusyStage", Stage)
    monkeypatch.setattr(brief_parts, "StageWeights", lambda _: None)
    weights: Any = None
    blocks: Any = (0.10, 0.11, 0.12)
    ends: Any = (0.05,)
    (first, *others), of_ends = stage_seconds(blocks, ends, weights, call_s=0.0, clock=machine)
    assert machine.now_s > HALF_AS_FAST_S / 3  # it is much slower than at first
    for seconds, call_s in zip((*others, *of_ends), (0.11, 0.12, 0.05), strict=True):
        for op in OPS:
            assert seconds[op] / first[op] == pytest.approx(call_s / 0.10, rel=0.07)
