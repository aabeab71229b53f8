"""Build a plan: derive all of it from a placement, a shape and a schedule."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from jaxpipe.collective import AllReduceKind, SyncTree
from jaxpipe.errors import PlanError
from jaxpipe.plan.check import most_microbatches
from jaxpipe.plan.cost import overfull
from jaxpipe.plan.partition import Cut
from jaxpipe.plan.pipeline import Pipeline, equal_pipelines
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.sync import island_tree, with_trees
from jaxpipe.schedule import Schedule, ScheduleKind, deepest_first
from jaxpipe.schedule.generators.one_f_one_b import check_warmup
from jaxpipe.search.sync_order import suited_tree
from jaxpipe.search.task import Task


def first_schedules(
    task: Task, num_stages: int, *, grows: bool = False
) -> tuple[ScheduleKind, ...]:
    """Return the schedules of which a plan has the first that fits, before others are tried.

    Where none is set they are those that a closed form of a step assumes, `deepest_first`.
    """
    fixed = task.fixed
    if fixed.schedule is not None:
        return (fixed.schedule,)
    if fixed.num_chunks > 1:
        return tuple(k for k in ScheduleKind if k.facts.is_searched and k.facts.takes_chunks)
    kinds = deepest_first(num_stages, grows=grows)
    return tuple(kind for kind in kinds if fixed.warmup is None or kind.facts.takes_warmup)


def with_first_schedules(task: Task, plan: Plan, *, grows: bool = False) -> Iterator[Plan]:
    """Yield the plan with each of its first schedules, as far as its chunks allow."""
    num_stages = max(pipeline.num_stages for pipeline in plan.pipelines)
    plans = (replace(plan, schedule=k) for k in first_schedules(task, num_stages, grows=grows))
    yield from filter(is_possible, plans)


def first_fitting(task: Task, plan: Plan) -> Plan | None:
    """Return the plan with the first of these schedules that fits; None if none does."""
    plans = with_first_schedules(task, plan)
    return next((plan for plan in plans if not lacking_bytes(task, plan)), None)


def lacking_bytes(task: Task, plan: Plan) -> int:
    """Return by how many bytes a plan exceeds the memory of a device at most; 0 if it fits."""
    excess = overfull(plan, task.profile, task.cluster, each=task.bytes_each)
    return max(excess.values(), default=0)


def is_possible(plan: Plan) -> bool:
    """Return whether ranks have all stages, and the schedule what it takes.

    These are its chunks, its warm-up and its number of microbatches.
    """
    sizes = ((each.num_stages, each.num_ranks * plan.num_chunks) for each in plan.pipelines)
    if any(num_stages != num_held for num_stages, num_held in sizes):
        return False  # a cut that is set has stages for one number of chunks alone
    if not all(map(_has_possible_length, plan.pipelines)):
        return False
    if not all(map(_has_possible_warmup, plan.pipelines)):
        return False
    if not isinstance(plan.schedule, ScheduleKind) or not plan.schedule.facts.takes_chunks:
        return plan.num_chunks == 1
    return plan.num_chunks > 1 and all(
        pipeline.num_microbatches % pipeline.num_ranks == 0 for pipeline in plan.pipelines
    )


def _has_possible_length(pipeline: Pipeline) -> bool:
    return pipeline.num_microbatches <= most_microbatches(pipeline.num_stages)


def _has_possible_warmup(pipeline: Pipeline) -> bool:
    if pipeline.warmup is None:
        return True
    num_stages, num_microbatches = pipeline.num_stages, pipeline.num_microbatches
    try:
        check_warmup(pipeline.warmup, num_stages=num_stages, num_microbatches=num_microbatches)
    except PlanError:
        return False
    return True


def build(  # noqa: PLR0913 - the choices of an even plan
    task: Task,
    placement: np.ndarray,
    *,
    microbatch: int,
    schedule: ScheduleKind | Schedule,
    cut: Cut | None = None,
    warmup: tuple[int, ...] | None = None,
    all_reduce: AllReduceKind = AllReduceKind.TREE,
    num_chunks: int = 1,
) -> Plan:
    """Return the plan of a placement, replicas x ranks, with sync trees for its all-reduce.

    The batch is a multiple of `microbatch` times the replicas. By default, `cut` is balanced for
    the slowest device of each of the `num_chunks` stages of a rank.
    """
    cut = cut or cut_by_cost(task, placement, num_chunks=num_chunks)
    return with_suited_trees(
        task,
        Plan(
            pipelines=equal_pipelines(
                map(tuple, placement.tolist()),
                cut=cut,
                warmup=warmup,
                microbatch=microbatch,
                num_microbatches=task.batch // (len(placement) * microbatch),
            ),
            schedule=schedule,
            all_reduce=all_reduce,
            num_chunks=num_chunks,
            tied=task.tied,
        ),
    )


def cut_by_cost(task: Task, placement: np.ndarray, *, num_chunks: int = 1) -> Cut:
    """Return the cut that is fixed, or the one whose slowest stage is fastest on a placement.

    Raises:
        PlanError: there are fewer layers than stages.
    """
    if task.fixed.cut is not None:
        return task.fixed.cut
    # The slowest replica of a stage sets the pace of the gradient sync.
    slow = np.tile(task.slow[placement].max(axis=0), num_chunks)
    return task.balanced_cut(tuple(slow.tolist()))


def with_suited_trees(task: Task, plan: Plan) -> Plan:
    """Return any plan with sync trees for its all-reduce, over the devices that hold each layer."""

    def tree(ranks: Sequence[int], num_gradients: int) -> SyncTree:
        return suited_tree(
            plan.all_reduce,
            task.cluster,
            {rank: plan.device(rank) for rank in ranks},
            num_bytes=num_gradients * task.bytes_each.gradient,
            chunk_bytes=task.chunk_bytes,
        )

    devices = task.cluster.devices
    return with_trees(
        plan,
        segment=lambda n, ranks: tree(ranks, task.profile.stage(plan.segments, n).num_gradients),
        shared=lambda ranks: tree(ranks, task.profile.embed.num_gradients),
        # Scalars are some bytes: there is no bandwidth to search a tree for.
        every=lambda ranks: island_tree({rank: devices[plan.device(rank)] for rank in ranks}),
    )
