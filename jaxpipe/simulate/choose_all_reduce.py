"""Choose the all-reduce of a plan's gradients by simulating all candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxpipe.collective import AllReduceKind, Collective
from jaxpipe.plan import Plan
from jaxpipe.schedule import Bucket, ScheduleKind
from jaxpipe.simulate.engine.simulator import simulate_ends
from jaxpipe.simulate.engine.step_model import StepModel
from jaxpipe.simulate.gradient_transfers import gradient_collectives
from jaxpipe.simulate.plan_step import IDEAL, Overheads, train_phase
from jaxpipe.topo import Cluster

MOST_CHUNKS = 8
"""Enough for chunks to overlap; more take longer to simulate and change little."""
_INSTANT_S = 1e-12
"""Compute must take some time; it should not count."""


def fastest_all_reduce(
    plan: Plan, cluster: Cluster, *, segment_bytes: Sequence[float], embed_bytes: float
) -> tuple[AllReduceKind, float]:
    """Return the fastest all-reduce along the plan's own sync trees, and its simulated seconds.

    All stages reduce at once, as they do at the end of a step; computing takes no time. Native
    all-reduces are not candidates: their messages are not known.
    """
    seconds = {
        kind: gradient_sync_s(
            replace(plan, all_reduce=kind),
            cluster,
            segment_bytes=segment_bytes,
            embed_bytes=embed_bytes,
        )
        for kind in AllReduceKind
        if kind.facts.is_searched
    }
    fastest = min(seconds, key=lambda kind: seconds[kind])  # the first of equally fast ones
    return fastest, seconds[fastest]


def gradient_sync_s(
    plan: Plan, cluster: Cluster, *, segment_bytes: Sequence[float], embed_bytes: float
) -> float:
    """Return the simulated seconds of the gradient sync, if all ranks begin it at once."""
    collectives = gradient_collectives(
        plan,
        segment_bytes=segment_bytes,
        embed_bytes=embed_bytes,
        chunk_bytes=max(1.0, *segment_bytes) / MOST_CHUNKS,
    )
    return reductions_s(plan, cluster, collectives)


def reductions_s(
    plan: Plan,
    cluster: Cluster,
    collectives: Mapping[Bucket, tuple[Collective, ...]],
    overheads: Overheads = IDEAL,
) -> float:
    """Return the simulated seconds of the collectives of a plan, all begun at once."""
    size = plan.num_ranks * plan.num_chunks
    job = StepModel(
        cluster=cluster,
        placement=plan.placement,
        phases=(train_phase(_shortened(plan)),),
        num_chunks=plan.num_chunks,
        # All ranks are ready at once: only the collectives take time.
        forward_s=(_INSTANT_S,) * size,
        backward_s=(_INSTANT_S,) * size,
        collectives=collectives,
        gradients=overheads.gradients,
        nic_efficiency=overheads.nic_efficiency,
    )
    return simulate_ends(job).last_s


def _shortened(plan: Plan) -> Plan:
    """Return a plan with few computes and all of the plan's reductions."""
    # The fewest microbatches that interleaving accepts; a custom schedule would fix their number.
    has_chunks = plan.num_chunks > 1
    return replace(
        plan,
        schedule=next(kind for kind in ScheduleKind if kind.facts.takes_chunks == has_chunks),
        pipelines=tuple(
            replace(each, warmup=None, num_microbatches=each.num_ranks) for each in plan.pipelines
        ),
    )
