"""The layouts of fig10-40 executed: real ranks and messages, paced computes, emulated links.

The judge lets messages block, our simulator lets them overlap, and on this scenario the two order
layouts differently. Each layout is executed with the runtime as it is and with blocking messages.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from experiments.sailor.planned import question
from experiments.sailor.predict import KNOWN_BEFORE, ProfiledCosts
from experiments.sailor.published import judged_plans, layout_of, model
from experiments.table import read_csv
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.search.layout import Layout, layout_step
from jaxpipe.simulate import StepModel

SCENARIO = "fig10-40"
TABLE = "paced.csv"
_TIMEOUT_S = 3600.0


class Disputed(NamedTuple):
    """A layout, and the planner that chose it."""

    planner: str
    layout: Layout

    @property
    def num_ranks(self) -> int:
        """One rank for each group of GPUs."""
        return sum(run.replicas for stage in self.layout.stages for run in stage)

    def step(self, *, blocking: bool) -> StepModel:
        """Return the step of the layout on the profiles alone."""
        scenario = question(SCENARIO).scenario
        costs = ProfiledCosts(model(scenario.model), KNOWN_BEFORE)
        return layout_step(self.layout, costs, batch=scenario.batch, blocking=blocking)

    def judged_s(self) -> float:
        """Return the seconds of the judge."""
        return question(SCENARIO).judge.step_s(self.layout)


def disputed(results: Path) -> list[Disputed]:
    """Return the published layouts, and ours for the judge and for our own seconds."""
    (ours,) = [row for row in read_csv(results / "planned.csv") if row["scenario"] == SCENARIO]
    return [
        *[
            Disputed(each.planner, each.layout)
            for each in judged_plans()
            if each.scenario == SCENARIO
        ],
        Disputed("jaxpipe, for the judge", layout_of(ours["plan"])),
        Disputed("jaxpipe, for its own seconds", layout_of(ours["own_plan"])),
    ]


def run_paced(results: Path) -> None:
    """Execute all layouts in one launch of as many ranks as the largest needs; write the table.

    Raises:
        RuntimeError: a rank failed.
    """
    num_ranks = max(each.num_ranks for each in disputed(results))
    command = [
        *launch_command(find_mpirun(), num_ranks=num_ranks),
        *(sys.executable, "-m", "experiments.sailor.paced_rank", str(results)),
    ]
    code = subprocess.run(command, check=False, timeout=_TIMEOUT_S).returncode
    if code:
        raise RuntimeError(f"the ranks exited with {code}; see their output above")
