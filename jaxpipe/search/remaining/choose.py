"""The choice between plans that may follow: steps until the next change, and moving the state.

::

    cost   steps until the next change x seconds of a step x (1 + a tenth of the part that moves)
           + seconds of moving the state

So a plan that moves nearly everything has to be faster by as much in all steps together, and by
more than a tenth: no closer does the closed form of a step (`jaxpipe.plan.cost.estimate`) tell
plans apart. Seconds of moving are those of `jaxpipe.plan.cost.moving_state`. To compile stages
again is not counted.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf

from jaxpipe.plan.cost.estimate import estimate
from jaxpipe.plan.cost.memory import BytesPerParameter, overfull
from jaxpipe.plan.cost.moving_state import is_complete, moved_fraction, moving_s
from jaxpipe.plan.islands import fitting_islands, islands_of
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.sync import with_island_trees
from jaxpipe.search.remaining.candidates import Remaining, slowest_s
from jaxpipe.topo import Cluster

_DOUBT = 0.1
"""The part of a step by which the closed form may be wrong between plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Future:
    """What a plan is worth: on which cluster, for how many steps, and whether its state moves.

    `moves` is false if all ranks read a checkpoint, whatever the plan. Gradients are sent in chunks
    of `chunk_bytes`. With an outer loop, islands of `per_island` replicas send once in
    `outer_every` steps what the sums of a step send between them.
    """

    cluster: Cluster
    each: BytesPerParameter
    num_steps: int
    moves: bool
    chunk_bytes: float = inf
    per_island: int | None = None
    outer_every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """The plan that follows, the seconds of its step, and those in which its state moves."""

    plan: Plan
    step_s: float
    moving_s: float
    cost_s: float


def choose(
    remaining: Remaining,
    future: Future,
    found: Iterable[tuple[Pipeline, ...]],
    accepts: Callable[[Plan], bool],
) -> Replanned | None:
    """Return the plan of the least cost that fits and is accepted; None if there is none.

    Of equal costs the first wins. Candidates come in the order of a lower bound of their costs, and
    only one that costs less than the best so far is checked: a check generates its schedule.
    """
    bounds = [(future.num_steps * _bound_s(remaining, each), each) for each in found]
    best: Replanned | None = None
    tight: list[tuple[int, Plan]] = []
    for bound_s, pipelines in sorted(bounds, key=lambda each: each[0]):
        if best is not None and bound_s >= best.cost_s:
            break
        plan = _with_trees(remaining, future, pipelines)
        if (excess := _excess(remaining, future, plan)) > 0:
            tight.append((excess, plan))
            continue
        best = _better(best, plan, remaining, future, accepts)
    if best is not None:
        return best
    # Memory is unknown, and every plan needs more than the running one: the least then.
    for _, plan in sorted(tight, key=lambda each: each[0]):
        if (last := _better(None, plan, remaining, future, accepts)) is not None:
            return last
    return None


def _with_trees(remaining: Remaining, future: Future, pipelines: tuple[Pipeline, ...]) -> Plan:
    plan = replace(
        remaining.running,
        pipelines=pipelines,
        schedule=remaining.schedule or remaining.running.schedule,
        num_chunks=remaining.num_chunks,
    )
    return with_island_trees(plan, future.cluster.devices)


def _better(
    best: Replanned | None,
    plan: Plan,
    remaining: Remaining,
    future: Future,
    accepts: Callable[[Plan], bool],
) -> Replanned | None:
    """Return the plan with its cost if that is less than the best, and the plan fits."""
    moved = _moved(plan, remaining, future)
    steps_s = _steps_s(_step_s(plan, remaining, future), moved, future)
    if best is not None and steps_s >= best.cost_s:
        return best  # without its seconds of moving, which take longer to count
    found = value(plan, remaining, future)
    if best is not None and found.cost_s >= best.cost_s:
        return best
    # In this order: memory is that of a schedule, which some candidates cannot have.
    if not accepts(plan):
        return best
    return best if overfull(plan, remaining.profile, future.cluster, each=future.each) else found


def value(plan: Plan, remaining: Remaining, future: Future) -> Replanned:
    """Return what a plan costs after the running one."""
    step_s, state_s = _step_s(plan, remaining, future), 0.0
    moved = _moved(plan, remaining, future)
    if moved:
        state_s = moving_s(
            remaining.running,
            plan,
            future.cluster,
            remaining.profile,
            # A gradient does not move.
            bytes_per_parameter=future.each.parameter + future.each.optimizer,
            lost=_lost(remaining),
        )
    cost_s = _steps_s(step_s, moved, future) + state_s
    return Replanned(plan=plan, step_s=step_s, moving_s=state_s, cost_s=cost_s)


def _moved(plan: Plan, remaining: Remaining, future: Future) -> float:
    """Return the part of the state that moves; 0 if all of it comes from a checkpoint."""
    lost = _lost(remaining)
    if not future.moves or not is_complete(remaining.running, lost=lost):
        return 0.0
    return moved_fraction(remaining.running, plan, lost=lost)


def _lost(remaining: Remaining) -> frozenset[int]:
    there = set(remaining.devices)
    return frozenset(
        device for row in remaining.running.placement for device in row if device not in there
    )


def _steps_s(step_s: float, moved: float, future: Future) -> float:
    """Return the seconds of all steps, as far as the closed form can be trusted."""
    return future.num_steps * step_s * (1 + _DOUBT * moved)


def _step_s(plan: Plan, remaining: Remaining, future: Future) -> float:
    """Return the seconds of a step, with an outer loop on average."""
    whole_s = _estimated_s(plan, remaining, future)
    if future.per_island is None or not plan.has_equal_cuts:
        return whole_s
    num_islands = fitting_islands(plan.num_replicas, per_island=future.per_island)
    islands = islands_of(plan, num_islands=num_islands)
    inner_s = max(_estimated_s(each.plan, remaining, future) for each in islands)
    return inner_s + max(0.0, whole_s - inner_s) / future.outer_every


def _estimated_s(plan: Plan, remaining: Remaining, future: Future) -> float:
    return estimate(
        plan,
        future.cluster,
        remaining.profile,
        slow=remaining.slow,
        gradient_bytes=future.each.gradient,
        chunk_bytes=future.chunk_bytes,
    ).step_s


def _bound_s(remaining: Remaining, pipelines: tuple[Pipeline, ...]) -> float:
    """Return seconds that no step of these pipelines can be shorter than: its busiest rank's."""
    seconds = slowest_s(remaining, [(each.devices, each.cut) for each in pipelines])
    samples_s = max(each.num_samples * s for each, s in zip(pipelines, seconds, strict=True))
    return samples_s / remaining.profile.microbatch


def _excess(remaining: Remaining, future: Future, plan: Plan) -> int:
    """Return by how many bytes a rank holds more than any of the running plan; at most 0 if none.

    That is all that is known of the room on devices of unknown memory.
    """
    devices = future.cluster.devices
    if all(devices[device].memory_bytes is not None for row in plan.placement for device in row):
        return 0
    held, before = (_most_bytes(each, remaining, future) for each in (plan, remaining.running))
    return held - before


def _most_bytes(plan: Plan, remaining: Remaining, future: Future) -> int:
    """Return the bytes of parameters, gradients and moments of the rank that has most."""
    each = future.each
    return max(
        sum(remaining.profile.stage(pipeline.cut, stage).parameters for stage in stages)
        * (each.parameter + each.gradient + each.optimizer)
        for pipeline in {each.shape: each for each in plan.pipelines}.values()
        for stages in map(pipeline.stages, range(pipeline.num_ranks))
    )
