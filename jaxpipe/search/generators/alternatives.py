"""The alternatives to each choice of a plan, with everything else as it is.

::

    schedule      GPipe, 1F1B, eager with several depths, interleaved, zero-bubble
    all-reduce    all whose messages are known
    microbatch    powers of two that divide the share of a replica
    cut           by cost, and even

A search tries those of its best plan until none is better; what they cost are the reasons for it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from jaxpipe.collective import AllReduceKind
from jaxpipe.plan import Plan, even_partition
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search.best import Best
from jaxpipe.search.build_plan import cut_by_cost, is_possible, with_suited_trees
from jaxpipe.search.shapes import has_one_order
from jaxpipe.search.task import Task

_DEEPEST_WARMUP = 4
_MOST_CHUNKS = 4
_CHUNKS_OF_ONE_RANK = (2, 4, 8, 16)
"""Each chunk has an all-reduce of its own; all but the last can run beside a backward."""
_LARGEST_MICROBATCH = 16


def alternatives(task: Task, best: Best) -> Iterator[Plan]:
    """Yield the alternatives to each choice of the best plan, until it has no better one."""
    plan = None
    while plan is not best.plan and best.plan is not None:
        plan = best.plan
        for others in CHOICES.values():
            for _, other in others(task, best.plan):
                yield other


def other_schedules(task: Task, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield the plan with each schedule, by name; of pipelines of one rank chunks alone differ."""
    if not isinstance(plan.schedule, ScheduleKind):
        yield "made to measure", plan
    alone = _with_chunks(task, plan, 1)
    kinds = [kind for kind in ScheduleKind if kind.facts.is_searched]
    if has_one_order(plan):
        # Without chunks all are the same order: one stands for them.
        plain = [kind for kind in kinds if not kind.facts.takes_chunks]
        example = plan.schedule if plan.num_chunks == 1 else plain[0]
        kinds = [kind for kind in kinds if kind.facts.takes_chunks or kind is example]
    for kind in kinds:
        if kind.facts.takes_chunks:
            yield from _in_chunks(task, plan, kind)
        elif is_possible(replace(alone, schedule=kind)):
            bare = replace(alone, schedule=kind).of_each(warmup=None)
            yield kind.value, bare
            if kind.facts.takes_warmup and plan.is_even:
                yield from _deepened(bare)


def _in_chunks(task: Task, plan: Plan, kind: ScheduleKind) -> Iterator[tuple[str, Plan]]:
    if not plan.is_even:
        return
    num_ranks = plan.pipelines[0].num_ranks
    numbers = range(2, _MOST_CHUNKS + 1)
    if num_ranks == 1:
        numbers = _CHUNKS_OF_ONE_RANK if plan.num_replicas > 1 else ()
    for num_chunks in numbers:
        if num_ranks * num_chunks <= task.num_layers:
            other = replace(_with_chunks(task, plan, num_chunks), schedule=kind)
            if is_possible(other):
                yield f"{kind.value}, {num_chunks} chunks", other.of_each(warmup=None)


def _deepened(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield the plan with 1F1B of deeper warm-ups: 1, 2, ... forwards per following stage.

    Depth hides the latency of messages, and takes memory.
    """
    for deeper in range(1, _DEEPEST_WARMUP + 1) if plan.num_stages > 1 else ():
        warmup = tuple(
            min(plan.num_microbatches, deeper * (plan.num_stages - stage - 1) + 1)
            for stage in range(plan.num_stages)
        )
        yield f"{plan.schedule_name}, {deeper} ahead", plan.of_each(warmup=warmup)


def _with_chunks(task: Task, plan: Plan, num_chunks: int) -> Plan:
    """Return the plan with as many stages on each rank, cut by cost if that is another number."""
    if plan.num_chunks == num_chunks:
        return plan
    cut = cut_by_cost(task, np.array(plan.placement), num_chunks=num_chunks)
    other = replace(plan, num_chunks=num_chunks).of_each(cut=cut, warmup=None, codecs=())
    return with_suited_trees(task, other)


def other_all_reduces(task: Task, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield the plan with each all-reduce, by name, if it sums anything."""
    for kind in AllReduceKind:
        # Of a library's own all-reduce the messages are not known.
        if kind.facts.is_native or not is_reduced(plan):
            continue
        yield kind.value, plan if kind is plan.all_reduce else with_all_reduce(task, plan, kind)


def is_reduced(plan: Plan) -> bool:
    """Return whether ranks sum gradients of any parameter."""
    return plan.num_replicas > 1 or plan.shares_embedding


def with_all_reduce(task: Task, plan: Plan, kind: AllReduceKind) -> Plan:
    """Return the plan with another all-reduce, and sync trees for it."""
    return with_suited_trees(task, replace(plan, all_reduce=kind))


def other_microbatches(_task: Task, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield an even plan with each size of microbatches, by its samples."""
    share = plan.pipelines[0].num_samples
    size = 1
    while plan.is_even and size <= min(share, _LARGEST_MICROBATCH):
        if share % size == 0 and isinstance(plan.schedule, ScheduleKind):
            # Larger microbatches are fewer: no warm-up may be deeper than their number.
            warmup = plan.warmup and tuple(min(share // size, depth) for depth in plan.warmup)
            other = plan.of_each(microbatch=size, num_microbatches=share // size, warmup=warmup)
            if is_possible(other):
                yield str(size), other
        size *= 2


def other_cuts(task: Task, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield a plan with the cut by cost and with the even one."""
    if not plan.is_even or plan.num_stages == 1:
        return
    placement = np.array(plan.placement)
    cuts = {
        "by cost": cut_by_cost(task, placement, num_chunks=plan.num_chunks),
        "even": even_partition(num_layers=task.num_layers, num_stages=plan.num_stages),
        "chosen": plan.cut,
    }
    # The first name of equal cuts.
    names = {cut: name for name, cut in reversed(cuts.items())}
    for cut, name in reversed(names.items()):
        other = plan if cut == plan.cut else plan.of_each(cut=cut, codecs=())
        yield f"{name} {list(cut)}", other if cut == plan.cut else with_suited_trees(task, other)


CHOICES: dict[str, Callable[[Task, Plan], Iterator[tuple[str, Plan]]]] = {
    "all-reduce": other_all_reduces,
    "schedule": other_schedules,
    "microbatch": other_microbatches,
    "cut": other_cuts,
}
"""The alternatives of each choice, by their names."""
