"""The plan of a configuration whose section `[plan]` leaves fields free: searched, and kept.

What is set stays, the rest is decided together, by the simulated seconds of a step and within the
memory of each device. The result is kept by the content of all that it depends on, so `show`,
`simulate` and `train` search once.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from jaxpipe.config import Config, to_tree
from jaxpipe.installed import version_of
from jaxpipe.plan import (
    Plan,
    ResolvedPlan,
    even_partition,
    parse_resolved_plan,
    resolved_plan_text,
)
from jaxpipe.plan.cost import overfull
from jaxpipe.propose.decided_plan import decided_plan
from jaxpipe.propose.query import Query, executable, generators_of, reasons_of, with_boundaries
from jaxpipe.propose.reasons import Reason
from jaxpipe.propose.unshared_links import UnsharedLinks, suited_to_sharing, unshared_links
from jaxpipe.runtime.storage.checksum import checksum_file
from jaxpipe.runtime.storage.kept_file import KeptFile
from jaxpipe.schedule import Remat, ScheduleKind
from jaxpipe.search import Effort, Task, search
from jaxpipe.simulate import Conditions, step_bound_s, step_objective
from jaxpipe.simulate.outer_step import mean_step_s
from jaxpipe.topo import Cluster
from jaxpipe.topo.write import cluster_toml

_FORMAT = 5
"""Of the kept file and of the search: raise it where another plan would be found."""
_SECTIONS = ("model", "plan", "train", "comm", "mesh", "outer", "lora", "optimizer", "paced")
"""The sections on which a plan depends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedPlan:
    """A plan that was searched, its simulated seconds of a step, and what was compared with it.

    `default_s` are the seconds of `default_name`: two stages as even as possible, as many replicas
    as devices allow, 1F1B, one sample to a microbatch; None if that does not fit. `unshared` is
    what the plan owes to links between regions that share nothing.
    """

    plan: Plan
    step_s: float
    num_valued: int
    default_s: float | None
    default_name: str
    reasons: tuple[Reason, ...] = ()
    unshared: UnsharedLinks | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """What was chosen, what the default would cost, and what depends on unshared links."""
        notice = () if self.unshared is None else (self.unshared.line,)
        return (*self._choice, *notice)

    @property
    def _choice(self) -> tuple[str, str]:
        plan = self.plan
        cut = " ".join(map(str, plan.cut)) if plan.has_equal_cuts else "one for each replica"
        sizes = sorted({pipeline.microbatch for pipeline in plan.pipelines})
        chosen = (
            f"planned: {plan.shape}, layers {cut}, microbatch {', '.join(map(str, sizes))}, "
            f"{plan.schedule_name}, all-reduce {plan.all_reduce}, remat {plan.remat}: "
            f"{self.step_s:.4g} s a step (simulated; {self.num_valued} plans)"
        )
        if self.default_s is None:
            return chosen, f"{self.default_name} does not fit into memory"
        ratio = self.default_s / self.step_s
        return chosen, f"{self.default_name}: {self.default_s:.4g} s, {ratio:.2f}x"


def searched_plan(
    config: Config,
    cluster: Cluster,
    *,
    num_ranks: int | None = None,
    seconds: float | None = None,
    observe: Callable[[int], None] = lambda _: None,
    environment: Mapping[str, str] = os.environ,
) -> SearchedPlan:
    """Return the best plan found within `seconds`, by default `plan.search_s`, or a kept one.

    All devices of the cluster have a speed. A launcher of the user may have started `num_ranks`.
    `observe` is called with the number of plans simulated so far.

    Raises:
        ConfigError: the speed of a device is unknown.
        PlanError: no plan fits into memory, or what is set fits no plan.
    """
    file = KeptFile(
        kind="plan", key=_key(config, cluster, num_ranks=num_ranks), environment=environment
    )
    # A longer search than the default one is made again, and kept.
    if seconds is None and (kept := file.read(_Kept)) is not None:
        return kept.searched_plan()
    query = Query(config=config, cluster=cluster, num_ranks=num_ranks)
    plan = _search(query, seconds=seconds or config.plan.search_s, observe=observe)
    file.write(_Kept.of(plan, cluster))
    return plan


def _search(query: Query, *, seconds: float, observe: Callable[[int], None]) -> SearchedPlan:
    """Search with each rematerialisation, and return the best plan of all."""
    plans = query.of_remats(partial(_search_with, query, seconds=seconds, observe=observe))
    best = min(plans, key=lambda plan: plan.step_s)
    return replace(best, num_valued=sum(plan.num_valued for plan in plans))


def _search_with(
    query: Query, remat: Remat, *, seconds: float, observe: Callable[[int], None]
) -> SearchedPlan:
    task, conditions = query.task(remat)
    objective = executable(query.config, step_objective(conditions))
    found = search(
        task,
        objective,
        bound=partial(step_bound_s, conditions=conditions),
        generators=generators_of(query),
        effort=Effort(seconds=seconds),
        # Of the processor: other processes on the machine make no plan worse.
        clock=time.process_time,
        observe=observe,
    )
    name, default_s = _default(query, task, conditions)
    suited = found if conditions.outer is not None else suited_to_sharing(found, conditions)
    # A searched plan is never slower than the one without a search.
    suited_s = mean_step_s(with_boundaries(query.config, suited.plan), conditions)
    result = found if default_s is not None and suited_s > default_s else suited
    plan = replace(with_boundaries(query.config, result.plan), remat=remat)
    return SearchedPlan(
        plan=plan,
        step_s=mean_step_s(plan, conditions),
        num_valued=result.num_valued,
        default_s=default_s,
        default_name=name,
        reasons=reasons_of(result),
        unshared=None if conditions.outer is not None else unshared_links(plan, result, conditions),
    )


def _default(query: Query, task: Task, conditions: Conditions) -> tuple[str, float | None]:
    """Return what a plan without a search is called, and its seconds if it fits.

    It has the stages, the replicas and the islands that are set.
    """
    num_devices, batch, given = len(query.cluster), task.batch, query.config.plan
    islands = max(1, query.config.outer.islands)
    least = given.replicas or islands
    stages = given.num_stages or max(1, min(2, num_devices // least, task.num_layers))
    numbers = range(islands, num_devices // stages + 1, islands)
    replicas = given.replicas or max((n for n in numbers if batch % n == 0), default=islands)
    section = replace(
        query.config.plan,
        stages=stages,
        replicas=replicas,
        microbatch=1,
        schedule=ScheduleKind.ONE_F_ONE_B,
        chunks=None,
        cut=even_partition(num_layers=task.num_layers, num_stages=stages),
        cuts=None,
        shares=None,
        warmup=None,
        schedule_file=None,
    )
    plan = decided_plan(replace(query.config, plan=section), query.cluster)
    name = f"without a search ({plan.shape}, even cut, microbatch 1, 1f1b)"
    if overfull(plan, task.profile, task.cluster, each=task.bytes_each):
        return name, None
    return name, mean_step_s(plan, conditions)


class _Kept(msgspec.Struct, kw_only=True):
    """A searched plan as it is kept: the plan as the text of its file."""

    plan: str
    step_s: float
    num_valued: int
    default_s: float | None
    default_name: str
    reasons: tuple[Reason, ...]
    unshared: UnsharedLinks | None

    @classmethod
    def of(cls, searched: SearchedPlan, cluster: Cluster) -> "_Kept":
        return cls(
            plan=resolved_plan_text(ResolvedPlan.of(searched.plan, cluster)),
            step_s=searched.step_s,
            num_valued=searched.num_valued,
            default_s=searched.default_s,
            default_name=searched.default_name,
            reasons=searched.reasons,
            unshared=searched.unshared,
        )

    def searched_plan(self) -> SearchedPlan:
        return SearchedPlan(
            plan=parse_resolved_plan(self.plan, source="the kept plan").plan,
            step_s=self.step_s,
            num_valued=self.num_valued,
            default_s=self.default_s,
            default_name=self.default_name,
            reasons=self.reasons,
            unshared=self.unshared,
        )


def _key(config: Config, cluster: Cluster, *, num_ranks: int | None) -> dict[str, Any]:
    """Return all that a searched plan depends on, as plain data."""
    tree = to_tree(config)
    return {
        "format": _FORMAT,
        "jaxpipe": version_of("jaxpipe"),
        "cluster": cluster_toml(cluster),
        "num_ranks": num_ranks,
        "keep_warm": config.run.keep_warm,
        "matmul_precision": config.run.matmul_precision.value,
        **{name: tree[name] for name in _SECTIONS},
        "profiles": [_digest(file) for file in _profile_files(config)],
    }


def _profile_files(config: Config) -> Iterator[Path]:
    if config.paced.profile is not None:
        yield Path(config.paced.profile)
    for word in config.paced.profile_of:
        yield Path(word.partition("=")[2])


def _digest(file: Path) -> str:
    """Return a checksum of a file; "" of one that cannot be read, which its reader refuses."""
    try:
        return checksum_file(file)
    except OSError:
        return ""
