"""Teams as a plan, and whether they fit their devices."""

from collections.abc import Sequence

import numpy as np

from jaxpipe.collective import AllReduceKind
from jaxpipe.plan.cost.memory import stage_memory
from jaxpipe.plan.partition import Cut
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.sync import with_island_trees
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search.fleet.team import Team
from jaxpipe.search.task import Task


def plan_of_teams(
    task: Task,
    teams: Sequence[Team],
    counts: np.ndarray,
    *,
    microbatch: int,
    schedule: ScheduleKind,
) -> Plan:
    """Return the plan, with hierarchical all-reduces along hosts inside regions.

    `counts` are the microbatches of each replica, team by team.
    """
    rows = [(tuple(row), team.cut) for team in teams for row in team.devices.tolist()]
    plan = Plan(
        pipelines=tuple(
            Pipeline(devices=row, cut=cut, num_microbatches=count, microbatch=microbatch)
            for (row, cut), count in zip(rows, counts.tolist(), strict=True)
        ),
        schedule=schedule,
        all_reduce=AllReduceKind.HIERARCHICAL,
        tied=task.tied,
    )
    return with_island_trees(plan, task.cluster.devices)


class Fits:
    """Whether teams fit the memory of their devices; equal pipelines are checked once."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._memory = np.array(
            [np.inf if d.memory_bytes is None else d.memory_bytes for d in task.cluster.devices]
        )
        self._needs: dict[tuple[Cut, int, ScheduleKind], np.ndarray] = {}

    def __call__(self, teams: Sequence[Team], *, microbatch: int, schedule: ScheduleKind) -> bool:
        """Return whether all stages of all replicas fit."""
        return all(
            bool((self._memory[team.devices] >= self._needed(team.cut, microbatch, schedule)).all())
            for team in teams
        )

    def _needed(self, cut: Cut, microbatch: int, schedule: ScheduleKind) -> np.ndarray:
        key = (cut, microbatch, schedule)
        if key not in self._needs:
            pipeline = Pipeline(
                devices=tuple(range(len(cut))),
                cut=cut,
                # More are never alive at once.
                num_microbatches=2 * len(cut),
                microbatch=microbatch,
            )
            plan = Plan(pipelines=(pipeline,), schedule=schedule, tied=self._task.tied)
            held = stage_memory(plan, self._task.profile, each=self._task.bytes_each)
            self._needs[key] = np.array([stage.total for stage in held], float)
        return self._needs[key]
