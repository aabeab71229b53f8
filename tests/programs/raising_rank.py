"""A training run of which rank 1 raises in its second step."""

import sys
from pathlib import Path

from jaxpipe.cli.main import main
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.runtime.step.worker import Worker

_train_step = Worker.train_step


def train_step(self: Worker, state: TrainState, *, step: int) -> tuple[TrainState, StepTotals]:
    if self.transport.rank == 1 and step == 1:
        (Path(sys.argv[1]).parent / "raised").touch()
        raise ValueError("stage 1 has\nno more memory")
    return _train_step(self, state, step=step)


if __name__ == "__main__":
    Worker.train_step = train_step
    sys.exit(main(["train", sys.argv[1]]))
