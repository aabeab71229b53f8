"""Stop ranks of a run from inside (SIGSTOP), each when it comes by the point that was named.

`jaxpipe train CONFIG --hooks jaxpipe.chaos.harness.halter:halter` puts it into each rank, which
does what `orders.json` beside the configuration says.
"""

import os
import signal
from pathlib import Path

from jaxpipe.chaos.harness.fault_plan import FaultPlan, note_halted, read_fault_plan
from jaxpipe.chaos.harness.kill_points import Point
from jaxpipe.runtime.hooks import Hooks, SavePhase
from jaxpipe.schedule import Instruction


def halter(config: Path, *, rank: int) -> "Halter":
    """Return the hooks of a rank, which do as the fault plan of its run says."""
    return Halter(read_fault_plan(config), config, rank=rank)


class Halter(Hooks):
    """Hooks that stop their own rank at the point of a `Halt`, if it is a victim."""

    def __init__(self, faults: FaultPlan, config: Path, *, rank: int) -> None:
        halt = faults.halt
        is_victim = halt is not None and rank in halt.victims
        self._point = halt.point if halt is not None and is_victim else None
        self._config, self._rank = config, rank

    def before_compile(self, *, done: int, total: int) -> None:  # noqa: ARG002
        """Stop in the compilation."""
        self._stop_at(Point.COMPILE)

    def before_instruction(self, instruction: Instruction) -> None:  # noqa: ARG002
        """Stop in the first step."""
        self._stop_at(Point.FIRST_FORWARD)

    def before_evaluation(self) -> None:
        """Stop before the held-out loss."""
        self._stop_at(Point.HELD_OUT)

    def before_save_phase(self, phase: SavePhase) -> None:
        """Stop in a save."""
        if phase is SavePhase.SHARDS:
            self._stop_at(Point.BEFORE_SHARDS)

    def _stop_at(self, point: Point) -> None:
        if point is self._point:
            note_halted(self._config, rank=self._rank)
            os.kill(os.getpid(), signal.SIGSTOP)
