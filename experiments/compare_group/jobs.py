"""The simulated step of every setting on a case, and its published seconds."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean

from experiments.compare_group.cases import Case, Cases, Setting, cluster_of
from experiments.compare_group.plans import conditions_of, read_found, unscheduled_plan
from experiments.dtfm_iteration_time.published import cells
from jaxpipe.baselines.published.published_systems import system_step
from jaxpipe.baselines.systems import System
from jaxpipe.plan import Plan
from jaxpipe.simulate import Conditions, Constants, StepModel, plan_step, simulate, step_seconds
from jaxpipe.topo import Cluster

MEGATRON = {
    System.MEGATRON_P8: "megatron_p8",
    System.MEGATRON_P4T2: "megatron_p4t2",
    System.MEGATRON_P2T4: "megatron_p2t4",
    System.MEGATRON_T8: "megatron_t8",
}
"""The published name of each of Megatron's layouts."""

PUBLISHED_NAMES = {
    Setting.MEGATRON_P8: "megatron_p8",
    Setting.DTFM: "dtfm_scheduled",
    Setting.DTFM_UNSCHEDULED: "dtfm_unscheduled",
    Setting.ZERO3: "zero_s3",
}
"""The published name of each other system."""


def published_s(setting: Setting, case: Case, cases: Cases) -> float | None:
    """Return the mean over the published seeds, or None if nothing was published.

    >>> from experiments.compare_group.cases import read_cases
    >>> cases = read_cases()
    >>> round(published_s(Setting.DTFM, cases.cases[0], cases), 2)
    10.14
    """
    if setting is Setting.MEGATRON_OPTIMAL:
        seconds = [_seconds(name, case, cases) for name in MEGATRON.values()]
        return min((each for each in seconds if each is not None), default=None)
    return _seconds(PUBLISHED_NAMES[setting], case, cases) if setting in PUBLISHED_NAMES else None


def published_layout(case: Case, cases: Cases) -> System | None:
    """Return the fastest published layout of Megatron, or None."""
    seconds = {
        system: each
        for system, name in MEGATRON.items()
        if (each := _seconds(name, case, cases)) is not None
    }
    return min(seconds, key=lambda system: seconds[system], default=None)


def _seconds(name: str, case: Case, cases: Cases) -> float | None:
    found = [
        cell.seconds
        for cell in cells()
        if (cell.case, cell.system, cell.layers, cell.batch)
        == (case.published, name, cases.layers, cases.batch)
    ]
    return mean(found) if found else None


_SYSTEMS = {
    Setting.MEGATRON_P8: System.MEGATRON_P8,
    Setting.DTFM: System.DTFM,
    Setting.DTFM_UNSCHEDULED: System.DTFM_UNSCHEDULED,
    Setting.ZERO3: System.ZERO3,
}


@dataclass(frozen=True, kw_only=True)
class Group:
    """All settings on one case; `plans` is the folder of the planner's plans."""

    case: Case
    cases: Cases
    constants: Constants
    plans: Path

    @cached_property
    def cluster(self) -> Cluster:
        """The devices that train."""
        return cluster_of(self.case, batch=self.cases.batch)

    @cached_property
    def conditions(self) -> Conditions:
        """The conditions in which our plans are simulated."""
        return conditions_of(self.cluster, self.cases.workload, self.constants)

    def job(self, setting: Setting) -> StepModel:
        """Return the simulated step of a setting.

        Raises:
            PlanError: the plan of this case is missing, or is for another cluster.
        """
        plan = self.plan(setting)
        if plan is not None:
            return plan_step(plan, self.conditions)
        system = self.layout if setting is Setting.MEGATRON_OPTIMAL else _SYSTEMS[setting]
        return self._theirs(system)

    def plan(self, setting: Setting) -> Plan | None:
        """Return the plan of a jaxpipe setting, or None for other systems.

        Raises:
            PlanError: the plan of this case is missing, or is for another cluster.
        """
        if setting not in (Setting.OURS, Setting.OURS_UNSCHEDULED):
            return None
        found = read_found(self.case, self.cluster, self.plans)
        if setting is Setting.OURS:
            return found
        return unscheduled_plan(found, self.cluster, seed=self.cases.seed)

    @cached_property
    def layout(self) -> System:
        """The fastest layout of Megatron: as published, else as simulated."""
        published = published_layout(self.case, self.cases)
        return published or min(MEGATRON, key=lambda system: step_s(self._theirs(system)))

    def _theirs(self, system: System) -> StepModel:
        return system_step(
            system,
            self.cluster,
            workload=self.cases.workload,
            constants=self.constants,
            seed=self.cases.seed,
        )


def step_s(job: StepModel) -> float:
    """Return the simulated seconds of a job."""
    return step_seconds(simulate(job))
