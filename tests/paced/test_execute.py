"""A job that is executed does what the same job does in the simulator, and none of it sooner."""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.baselines.published.dtfm import dtfm_step
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.comm import run_ranks
from jaxpipe.errors import DeadlineError
from jaxpipe.paced import Outcome, PlannedAllReduces, Scale, execute, planned_all_reduces
from jaxpipe.plan import Plan, default_plan
from jaxpipe.plan.cost import flop_profile
from jaxpipe.schedule import Bucket, ScheduleKind
from jaxpipe.simulate import (
    Conditions,
    Overheads,
    Phase,
    StepModel,
    dtfm_constants,
    plan_step,
    simulate,
)
from jaxpipe.trace import Lane, Span, Trace, Truth, summarise
from tests.plan_section import decided

TIMEOUT_S = 60.0
CLUSTER = topo.load("two-region")
AS_IT_IS = Scale(message=1.0)


def run(
    job: StepModel,
    *,
    num_ranks: int = 0,
    scale: Scale = AS_IT_IS,
    all_reduces: PlannedAllReduces | None = None,
) -> Outcome:
    """Execute a job in threads, as many as it has ranks or more."""
    outcomes = run_ranks(
        num_ranks or job.num_ranks,
        lambda transport: execute(
            job, transport, scale=scale, all_reduces=all_reduces, timeout_s=TIMEOUT_S
        ),
    )
    first, *others = outcomes
    assert first is not None
    assert others == [None] * len(others)
    return first


def published_job(*, batch: int, num_stages: int = 2, num_replicas: int = 2) -> StepModel:
    """Return a small job in the manner of DT-FM: GPipe, a meeting of all, chains at the end."""
    placement = tuple(
        tuple(range(replica * num_stages, (replica + 1) * num_stages))
        for replica in range(num_replicas)
    )
    cluster = replace(
        CLUSTER, devices=tuple(replace(d, effective_flops_per_s=1e11) for d in CLUSTER.devices)
    )
    workload = Workload(num_layers=4, batch=batch, dim=32, sequence=32, vocabulary=64)
    return dtfm_step(cluster, placement, workload=workload, constants=dtfm_constants())


def planned_job(
    *, schedule: ScheduleKind, all_reduce: AllReduceKind, tied: bool, num_chunks: int = 1
) -> tuple[StepModel, PlannedAllReduces, Plan]:
    """Return a small planned job of 2 stages x 2 replicas, and its sums."""
    config = decided(
        cluster="two-region", stages=2, replicas=2, chunks=num_chunks, schedule=schedule
    )
    plan = default_plan(config, CLUSTER, num_layers=4, batch=8, tied=tied)
    plan = replace(plan, all_reduce=all_reduce)
    conditions = conditions_of_plan()
    return plan_step(plan, conditions), planned_all_reduces(plan, conditions), plan


def conditions_of_plan() -> Conditions:
    """Return a model of four layers, on the cluster."""
    profile = flop_profile(
        num_layers=4,
        layer_flop=1e6,
        layer_parameters=1000,
        layer_kept_bytes=0,
        activation_bytes=4000,
        embed_parameters=500,
        flops_per_s=1e9,
    )
    return Conditions(
        cluster=CLUSTER,
        profile=profile,
        slow=np.ones(len(CLUSTER)),
        gradient_bytes=4,
        overheads=Overheads(chunk_bytes=1024),
    )


def computes(trace: Trace) -> dict[int, list[Span]]:
    """Return the computes of each rank, in the order in which they began."""
    found: defaultdict[int, list[Span]] = defaultdict(list)
    for span in sorted(trace.spans, key=lambda span: (span.start_s, span.end_s)):
        if span.lane is Lane.COMPUTE:
            found[span.rank].append(span)
    return dict(found)


def last_compute_s(trace: Trace) -> float:
    """Return when the last compute ends: what follows it are all-reduces."""
    return max(span.end_s for span in trace.spans if span.lane is Lane.COMPUTE)


def assert_like_simulated(job: StepModel, outcome: Outcome) -> None:
    """The same computes in the same order, each as long as simulated, and none sooner."""
    simulated, emulated = simulate(job), outcome.trace
    assert emulated.truth is Truth.EMULATED
    expected, found = computes(simulated), computes(emulated)
    assert found.keys() == expected.keys()
    for rank, spans in expected.items():
        assert [(s.name, s.stage, s.microbatch) for s in found[rank]] == [
            (s.name, s.stage, s.microbatch) for s in spans
        ]
        for ours, theirs in zip(found[rank], spans, strict=True):
            assert ours.start_s >= theirs.start_s - 1e-9
            assert ours.end_s - ours.start_s == pytest.approx(theirs.end_s - theirs.start_s)
    assert outcome.step_s >= max(spans[-1].end_s for spans in expected.values()) - 1e-9


def messages(trace: Trace, lane: Lane) -> Counter[tuple[int, int | None, int, int | None]]:
    """Return who sends what to whom, or receives it, and how often."""
    return Counter(
        (span.rank, span.peer, span.stage, span.microbatch)
        for span in trace.spans
        if span.lane is lane
    )


@pytest.mark.parametrize("batch", [2, 6])
def test_a_published_job_runs_as_simulated(batch: int):
    job = published_job(batch=batch)
    outcome = run(job)
    assert_like_simulated(job, outcome)
    for lane in (Lane.SEND, Lane.RECEIVE):
        assert messages(outcome.trace, lane) == messages(simulate(job), lane)


def test_all_ranks_meet_between_forwards_and_backwards():
    trace = run(published_job(batch=6)).trace
    last_forward_s = max(s.end_s for s in trace.spans if s.name == "forward")
    assert min(s.start_s for s in trace.spans if s.name == "backward") >= last_forward_s


def test_replicas_sum_at_the_end():
    trace = run(published_job(batch=4)).trace
    reduced = {span.rank for span in trace.spans if span.name == "reduce stage"}
    assert reduced == {0, 1, 2, 3}


@pytest.mark.parametrize(("num_stages", "num_replicas"), [(1, 2), (2, 1), (4, 1)])
def test_other_shapes(num_stages: int, num_replicas: int):
    job = published_job(batch=2 * num_replicas, num_stages=num_stages, num_replicas=num_replicas)
    # In a simulated meeting of two, who comes last waits until the other has heard of it.
    job = replace(job, phases=tuple(replace(phase, meets=False) for phase in job.phases))
    assert_like_simulated(job, run(job, num_ranks=5))


@pytest.mark.parametrize(
    ("schedule", "all_reduce", "tied", "num_chunks"),
    [
        (ScheduleKind.EAGER_ONE_F_ONE_B, AllReduceKind.HIERARCHICAL, True, 1),
        (ScheduleKind.ZB_H1, AllReduceKind.CHAIN, False, 1),
        (ScheduleKind.INTERLEAVED, AllReduceKind.RING, False, 2),
    ],
)
def test_a_planned_job_runs_with_the_sums_of_the_runtime(
    schedule: ScheduleKind, all_reduce: AllReduceKind, tied: bool, num_chunks: int
):
    job, all_reduces, _ = planned_job(
        schedule=schedule, all_reduce=all_reduce, tied=tied, num_chunks=num_chunks
    )
    outcome = run(job, all_reduces=all_reduces)
    assert_like_simulated(job, outcome)
    stages = {span.stage for span in outcome.trace.spans if span.name == "reduce stage"}
    assert stages == set(range(job.num_stages))
    shared = {span.rank for span in outcome.trace.spans if span.name == "reduce tied"}
    assert shared == ({0, 1, 2, 3} if tied else set())


@pytest.mark.parametrize(("num_stages", "num_replicas"), [(2, 2), (3, 1), (4, 1)])
def test_messages_that_block_take_as_long_as_simulated(num_stages: int, num_replicas: int):
    config = decided(cluster="two-region", stages=num_stages, replicas=num_replicas)
    plan = default_plan(config, CLUSTER, num_layers=4, batch=8, tied=False)
    job = plan_step(plan, conditions_of_plan())
    blocking = replace(job, blocking=True)
    # Slower than real time: a late machine adds to the seconds, and may change who meets whom.
    outcome = run(blocking, scale=Scale(message=1.0, time=4.0))
    simulated, overlapping = last_compute_s(simulate(blocking)), last_compute_s(simulate(job))
    assert last_compute_s(outcome.trace) >= 0.97 * simulated
    # Messages that overlap are hidden in part.
    assert simulated > 1.1 * overlapping


def test_a_blocking_message_that_nobody_receives_is_missed_in_time():
    job = replace(published_job(batch=2), blocking=True)
    receiving, _ = job.phases[1].schedule
    silent = replace(job, phases=(Phase(schedule=(receiving, ())),))

    with pytest.raises(DeadlineError, match="timed out after"):
        run_ranks(job.num_ranks, lambda transport: execute(silent, transport, timeout_s=0.5))


def test_unlike_replicas_run_as_simulated():
    config = decided(
        cluster="two-region", cuts=((3, 1), (4,)), shares=(5, 3), schedule=ScheduleKind.ZB_H1
    )
    plan = default_plan(config, CLUSTER, num_layers=4, batch=8, tied=True)
    conditions = conditions_of_plan()
    job = plan_step(plan, conditions)
    outcome = run(job, all_reduces=planned_all_reduces(plan, conditions))
    assert_like_simulated(job, outcome)
    reduced = Counter(span.rank for span in outcome.trace.spans if span.name == "reduce stage")
    assert reduced == {0: 1, 1: 1, 2: 2}  # replica 1 holds both segments on one rank
    shared = {span.rank for span in outcome.trace.spans if span.name == "reduce tied"}
    assert shared == {0, 1, 2}


@pytest.mark.parametrize(
    "layout",
    [
        {"stages": 2, "replicas": 2},
        {"stages": 2, "replicas": 2, "chunks": 2, "schedule": ScheduleKind.INTERLEAVED},
        {"cuts": ((3, 1), (4,)), "shares": (5, 3)},
    ],
)
def test_a_sharded_optimizer_gathers_as_simulated(layout: dict[str, Any]):
    config = decided(cluster="two-region", **layout)
    plan = default_plan(config, CLUSTER, num_layers=4, batch=8, tied=True)
    conditions = replace(conditions_of_plan(), gathered_bytes=4.0)
    job = plan_step(plan, conditions)
    outcome = run(job, all_reduces=planned_all_reduces(plan, conditions))
    assert_like_simulated(job, outcome)
    gathers = [
        Counter((span.rank, span.stage) for span in trace.spans if span.name == "gather")
        for trace in (outcome.trace, simulate(job))
    ]
    # A rank gathers the segments of a stage in one span, which the simulation has one by one.
    assert gathers[0].keys() == gathers[1].keys()
    assert simulate(job).spans[-1].end_s > 1.01 * simulate(replace(job, gathers=())).spans[-1].end_s


def test_each_boundary_has_messages_of_its_own_size():
    """The second boundary of three stages has a codec: messages are simulated and sent with it."""
    config = decided(cluster="two-region", stages=3, replicas=1, schedule=ScheduleKind.ZB_H1)
    plan = default_plan(config, CLUSTER, num_layers=4, batch=4, tied=False)
    plan = plan.of_each(codecs=(CodecKind.NONE, CodecKind.BF16))
    conditions = conditions_of_plan()
    job = plan_step(plan, conditions)
    outcome = run(job, all_reduces=planned_all_reduces(plan, conditions))
    assert_like_simulated(job, outcome)
    sizes = {
        frozenset((span.rank, span.peer)): span.num_bytes
        for trace in (outcome.trace, simulate(job))
        for span in trace.spans
        if span.lane in (Lane.SEND, Lane.RECEIVE)
    }
    assert sizes == {frozenset((0, 1)): 4000, frozenset((1, 2)): 2000}


def test_sums_have_the_bytes_of_the_job():
    job, all_reduces, plan = planned_job(
        schedule=ScheduleKind.ONE_F_ONE_B, all_reduce=AllReduceKind.CHAIN, tied=False
    )
    for stage, collective in enumerate(job.collectives[Bucket.STAGE]):
        down = sum(
            each.num_bytes
            for each in collective
            if each.source == plan.rank(replica=0, stage=stage)
        )
        assert (down,) == pytest.approx(all_reduces.of_stage(replica=0, stage=stage))


def test_messages_may_be_smaller_and_time_slower():
    job = published_job(batch=2)
    whole, scaled = run(job), run(job, scale=Scale(message=0.25, time=2.0))
    assert_like_simulated(job, whole)
    assert_like_simulated(job, scaled)
    assert messages(whole.trace, Lane.SEND) == messages(scaled.trace, Lane.SEND)
    assert {s.num_bytes for s in scaled.trace.spans if s.lane is Lane.SEND} == {
        round(job.message_bytes(0, 1))
    }
    assert scaled.real_s >= scaled.step_s - 1e-3


def test_scalars_are_as_many_bytes_in_a_smaller_emulation():
    job, all_reduces, _ = planned_job(
        schedule=ScheduleKind.ONE_F_ONE_B, all_reduce=AllReduceKind.HIERARCHICAL, tied=False
    )
    trace = run(job, scale=Scale(message=1e-6), all_reduces=all_reduces).trace
    seconds = [span.end_s - span.start_s for span in trace.spans if span.name == "reduce scalars"]
    assert len(seconds) == job.num_ranks
    # The last rank to join waits for latencies; with a million times the bytes for 0.6 s at least.
    assert min(seconds) < 0.3


def test_a_message_that_never_comes_is_missed_in_time():
    job = published_job(batch=2)
    receiving, sending = job.phases[1].schedule  # after the empty phase and its barrier
    silent = replace(job, phases=(Phase(schedule=((), sending)),))
    assert receiving

    with pytest.raises(DeadlineError, match="timed out after"):
        run_ranks(job.num_ranks, lambda transport: execute(silent, transport, timeout_s=0.5))


def test_the_bubble_of_a_step_is_that_of_its_trace_also_where_the_last_stage_ends_last():
    """With a slow last stage the phase of the first rank is not the longest of its replica."""
    config = decided(cluster="two-region", stages=2, replicas=2, schedule=ScheduleKind.ZB_H2)
    plan = default_plan(config, CLUSTER, num_layers=4, batch=8, tied=False)
    conditions = conditions_of_plan()
    slow = np.ones(len(CLUSTER))
    slow[[plan.device(rank) for rank in (1, 3)]] = 40.0
    job = plan_step(plan, replace(conditions, slow=slow))
    outcome = run(job, all_reduces=planned_all_reduces(plan, conditions))
    (summary,) = summarise(replace(outcome.trace, bubbles=()))
    assert outcome.bubbles == pytest.approx([summary.bubble], rel=1e-6)
    phases_s = [
        max(span.end_s for span in spans) - min(span.start_s for span in spans)
        for _, spans in sorted(computes(outcome.trace).items())
    ]
    assert phases_s[0] < phases_s[1]
