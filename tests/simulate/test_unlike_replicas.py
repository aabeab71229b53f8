"""Simulated plans whose replicas differ, against each replica alone and the bytes of its layers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.plan import Plan, check_plan
from jaxpipe.schedule import Bucket, timetable
from jaxpipe.simulate import Conditions, fastest_all_reduce, plan_step, simulate, step_breakdown
from jaxpipe.trace import Lane, Trace, summarise
from tests.plan.test_unlike_replicas import NUM_LAYERS, one_of_each, plans
from tests.simulate.test_plan_step import conditions_of


def seconds_of(plan: Plan, replica: int, conditions: Conditions) -> float:
    """Return the seconds of the computes of a replica by itself, without messages."""
    pipeline = plan.pipelines[replica]
    slow = [
        pipeline.microbatch
        * conditions.slow[pipeline.devices[stage % pipeline.num_ranks]]
        * pipeline.cut[stage]
        for stage in range(pipeline.num_stages)
    ]
    return timetable(
        plan.compute_schedule(replica=replica),
        forward_s=tuple(map(float, slow)),
        backward_s=tuple(2.0 * each for each in slow),
    ).makespan_s


def compute_end_s(trace: Trace, ranks: range) -> float:
    """Return when the last of these ranks has computed."""
    return max(
        span.end_s for span in trace.spans if span.rank in ranks and span.lane is Lane.COMPUTE
    )


@given(plans(), st.integers(0, 99))
def test_each_replica_takes_the_time_of_its_own_schedule(plan: Plan, seed: int):
    conditions = conditions_of(16, layers=NUM_LAYERS, network=False)
    slow = np.random.default_rng(seed).uniform(1.0, 3.0, 16)
    conditions = replace(conditions, slow=slow)
    trace = simulate(plan_step(plan, conditions))
    ends = (*plan.first_ranks, plan.num_ranks)
    for replica in range(plan.num_replicas):
        ranks = range(ends[replica], ends[replica + 1])
        assert compute_end_s(trace, ranks) == pytest.approx(seconds_of(plan, replica, conditions))
    split = step_breakdown(plan, conditions)
    assert split.step_s == pytest.approx(max(span.end_s for span in trace.spans))


@given(plans())
def test_all_gradients_are_reduced_once_by_each_replica(plan: Plan):
    conditions = conditions_of(16, layers=NUM_LAYERS, network=True)
    job = plan_step(plan, conditions)
    collectives = job.collectives.get(Bucket.STAGE, ())
    assert len(collectives) == (len(plan.segments) if plan.num_replicas > 1 else 0)
    # A tree sends each gradient up from every rank but its leader, and down again.
    sent = sum(each.num_bytes for collective in collectives for each in collective)
    parameters = 10 * NUM_LAYERS + 6 * (not plan.shares_embedding)
    assert sent == pytest.approx(2 * (plan.num_replicas - 1) * parameters)
    trace = simulate(job)
    reduced = sum(span.name == "reduce stage" for span in trace.spans)
    assert reduced == plan.num_replicas * len(collectives)


def test_microbatches_of_their_own_size_have_messages_of_their_own_size():
    plan = one_of_each()
    second = replace(plan.pipelines[1], cut=(1, 4), devices=(2, 3), microbatch=1)
    conditions = conditions_of(16, layers=NUM_LAYERS, network=True)
    # Trees are over the ranks of the plan: they follow its shape.
    both = replace(
        plan,
        pipelines=(plan.pipelines[0], second),
        sync=((0, 2), (0, 3), (1, 3)),
        sync_shared=(0, 1, 2, 3),
        sync_all=(0, 1, 2, 3),
    )
    check_plan(both, num_devices=16)
    trace = simulate(plan_step(both, conditions))
    sent = {span.rank: span.num_bytes for span in trace.spans if span.lane is Lane.SEND}
    assert sent == {0: 8, 1: 8, 2: 4, 3: 4}


def test_a_bubble_counts_the_ranks_of_each_replica():
    plan, conditions = one_of_each(), conditions_of(16, layers=NUM_LAYERS, network=False)
    (step,) = summarise(simulate(plan_step(plan, conditions)))
    phases_s = [seconds_of(plan, replica, conditions) for replica in (0, 1)]
    compute_s = 3 * plan.batch * NUM_LAYERS
    assert step.bubble == pytest.approx(1 - compute_s / (2 * phases_s[0] + phases_s[1]))


def test_an_all_reduce_is_chosen_for_unlike_replicas():
    conditions = conditions_of(16, layers=NUM_LAYERS, network=True)
    _, seconds = fastest_all_reduce(
        one_of_each(), conditions.cluster, segment_bytes=(80.0, 8.0), embed_bytes=0.0
    )
    assert seconds > 80 / 8
