"""The job of every setting on a case: what is simulated, and what paced ranks execute."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from experiments.compare_group.cases import Case, Cases, cluster_of
from experiments.compare_group.plans import conditions_of, read_found, unscheduled_plan
from experiments.compare_group.published import MEGATRON, published_layout
from experiments.compare_group.setting import Setting
from jaxpipe.plan import Plan
from jaxpipe.simulate import (
    Conditions,
    Constants,
    StepModel,
    System,
    plan_step,
    simulate,
    system_step,
)
from jaxpipe.simulate.plan_step import end_s
from topo import Cluster

_SYSTEMS = {
    Setting.MEGATRON_P8: System.MEGATRON_P8,
    Setting.DTFM: System.DTFM,
    Setting.DTFM_UNSCHEDULED: System.DTFM_UNSCHEDULED,
    Setting.ZERO3: System.ZERO_S3,
}


@dataclass(frozen=True, kw_only=True)
class Group:
    """All settings on one case; `plans` is the folder of the plans that were found."""

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
        """What our plans are simulated with."""
        return conditions_of(self.cluster, self.cases.workload, self.constants)

    def job(self, setting: Setting) -> StepModel:
        """Return a step of a setting.

        Raises:
            PlanError: the plan of this case is missing, or is for another cluster.
        """
        plan = self.plan(setting)
        if plan is not None:
            return plan_step(plan, self.conditions)
        system = self.layout if setting is Setting.MEGATRON_OPTIMAL else _SYSTEMS[setting]
        return self._theirs(system)

    def plan(self, setting: Setting) -> Plan | None:
        """Return the plan of a setting of ours; None of the others.

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
        """The fastest of Megatron's layouts: as published, or else as simulated."""
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
    return end_s(simulate(job))
