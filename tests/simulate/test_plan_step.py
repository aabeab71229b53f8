"""Plans as jobs: against closed forms, and what a step splits into."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind
from jaxpipe.plan import Plan, default_plan
from jaxpipe.plan.cost import Software, flop_profile
from jaxpipe.schedule import Bucket, ScheduleKind
from jaxpipe.simulate import (
    Conditions,
    MessageCosts,
    Overheads,
    extrapolated_step_s,
    plan_step,
    plan_step_s,
    simulate,
    step_breakdown,
    step_objective,
)
from jaxpipe.trace import Lane
from tests.plan_section import decided
from tests.simulate.uniform import cluster

SIZES = st.integers(1, 4)


def conditions_of(
    num_devices: int, *, layers: int, network: bool, local_factor: float = 1.0
) -> Conditions:
    """Return layers of 1 s forwards and 2 s backwards, of 10 parameters of 1 byte each."""
    where = cluster(num_devices, latency_s=0.25 * network, bytes_per_s=8 if network else np.inf)
    profile = flop_profile(
        num_layers=layers,
        layer_flop=1.0,
        layer_parameters=10,
        layer_kept_bytes=1,
        activation_bytes=4,
        embed_parameters=6,
        flops_per_s=1.0,
    )
    return Conditions(
        cluster=where,
        profile=profile,
        slow=np.ones(num_devices),
        gradient_bytes=1,
        overheads=Overheads(local_factor=local_factor),
    )


def with_updates(conditions: Conditions, *layers_s: float) -> Conditions:
    """Return conditions in which the optimizer of each layer takes so many seconds."""
    layers = tuple(
        replace(layer, update_s=update_s)
        for layer, update_s in zip(conditions.profile.layers, layers_s, strict=True)
    )
    return replace(conditions, profile=replace(conditions.profile, layers=layers))


def plan_of(
    conditions: Conditions, *, stages: int, replicas: int, batch: int, tied: bool = False
) -> Plan:
    config = decided(stages=stages, replicas=replicas, schedule=ScheduleKind.EAGER_ONE_F_ONE_B)
    num_layers = len(conditions.profile.layers)
    return default_plan(config, conditions.cluster, num_layers=num_layers, batch=batch, tied=tied)


@settings(deadline=None, max_examples=40)
@given(SIZES, SIZES, SIZES, SIZES)
def test_without_a_network_a_plan_takes_the_closed_form(
    stages: int, layers: int, replicas: int, microbatches: int
):
    conditions = conditions_of(stages * replicas, layers=stages * layers, network=False)
    plan = plan_of(conditions, stages=stages, replicas=replicas, batch=replicas * microbatches)
    closed_s = (microbatches + stages - 1) * 3.0 * layers
    assert plan_step_s(plan, conditions) == pytest.approx(closed_s)
    split = step_breakdown(plan, conditions)
    assert split.compute_s == pytest.approx(3.0 * layers * microbatches)
    assert split.bubble_s == pytest.approx(3.0 * layers * (stages - 1))
    assert (split.activations_s, split.gradients_s) == pytest.approx((0.0, 0.0))


@settings(deadline=None, max_examples=20)
@given(SIZES, SIZES, st.integers(1, 3))
def test_chunks_make_the_bubble_smaller(ranks: int, rounds: int, chunks: int):
    conditions = conditions_of(ranks, layers=ranks * chunks, network=False)
    config = decided(
        stages=ranks * chunks, replicas=1, chunks=chunks, schedule=ScheduleKind.INTERLEAVED
    )
    microbatches = ranks * rounds
    plan = default_plan(
        config,
        conditions.cluster,
        num_layers=ranks * chunks,
        batch=microbatches,
        tied=False,
    )
    closed_s = (microbatches * chunks + ranks - 1) * 3.0
    assert plan_step_s(plan, conditions) == pytest.approx(closed_s)


@settings(deadline=None, max_examples=40)
@given(SIZES, SIZES, st.integers(1, 6), st.booleans())
def test_the_parts_of_a_step_are_there_and_add_up(
    stages: int, replicas: int, microbatches: int, tied: bool
):
    conditions = conditions_of(stages * replicas, layers=stages, network=True)
    plan = plan_of(
        conditions, stages=stages, replicas=replicas, batch=replicas * microbatches, tied=tied
    )
    split = step_breakdown(plan, conditions)
    assert split.step_s == pytest.approx(plan_step_s(plan, conditions))
    assert split.bubble_s >= 0
    assert min(split.activations_s, split.gradients_s) >= -1e-9
    assert (split.activations_s > 0) == (stages > 1)
    assert (split.gradients_s > 0) == (stages * replicas > 1)


@settings(deadline=None, max_examples=30)
@given(SIZES, SIZES, st.integers(1, 4), st.floats(0, 5), st.booleans())
def test_equal_optimizers_make_a_step_longer_by_themselves(
    stages: int, replicas: int, microbatches: int, update_s: float, network: bool
):
    without = conditions_of(stages * replicas, layers=stages, network=network)
    conditions = with_updates(without, *[update_s] * stages)
    plan = plan_of(without, stages=stages, replicas=replicas, batch=replicas * microbatches)
    step_s = plan_step_s(plan, without) + update_s
    assert plan_step_s(plan, conditions) == pytest.approx(step_s)
    split, before = step_breakdown(plan, conditions), step_breakdown(plan, without)
    assert (split.update_s, before.update_s) == pytest.approx((update_s, 0.0))
    assert split.step_s == pytest.approx(step_s)
    assert split.bubble_s == pytest.approx(before.bubble_s)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0, 5), min_size=1, max_size=4), st.integers(1, 3))
def test_an_optimizer_never_makes_a_step_shorter_nor_longer_than_by_the_slowest(
    updates_s: list[float], replicas: int
):
    stages = len(updates_s)
    without = conditions_of(stages * replicas, layers=stages, network=True)
    plan = plan_of(without, stages=stages, replicas=replicas, batch=replicas * 2)
    step_s = plan_step_s(plan, without)
    longer_s = plan_step_s(plan, with_updates(without, *updates_s)) - step_s
    assert min(updates_s) - 1e-9 <= longer_s <= max(updates_s) + 1e-9


def test_a_slow_device_updates_as_many_times_longer():
    conditions = with_updates(conditions_of(2, layers=2, network=False), 1.0, 1.0)
    conditions = replace(conditions, slow=np.array([1.0, 3.0]))
    plan = plan_of(conditions, stages=2, replicas=1, batch=1)
    assert plan_step(plan, conditions).update_s == (1.0, 3.0)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 60), st.booleans())
def test_a_long_step_is_foreseen_from_two_short_ones(stages: int, microbatches: int, slow: bool):
    conditions = conditions_of(stages, layers=stages, network=slow)
    plan = plan_of(conditions, stages=stages, replicas=1, batch=microbatches)
    assert extrapolated_step_s(plan, conditions) == pytest.approx(plan_step_s(plan, conditions))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 12)), min_size=1, max_size=5))
def test_the_plan_that_a_search_values_least_is_valued_exactly(each: list[tuple[int, int]]):
    conditions = conditions_of(3, layers=3, network=True)
    plans = [
        plan_of(conditions, stages=3, replicas=1, batch=40).of_each(warmup=(depth, middle, 1))
        for middle, extra in each
        for depth in [middle + extra]
    ]
    objective = step_objective(conditions)
    valued = [(objective(plan), plan) for plan in plans]
    value, best = min(valued, key=lambda pair: pair[0])
    assert value == plan_step_s(best, conditions)


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_embedding_is_summed_apart(tied: bool):
    conditions = conditions_of(4, layers=2, network=True)
    plan = plan_of(conditions, stages=2, replicas=2, batch=2, tied=tied)
    sums = plan_step(plan, conditions).collectives
    moved = {name: sum(t.num_bytes for c in each for t in c) for name, each in sums.items()}
    # a sum over n ranks moves its bytes 2 (n - 1) times: 2 stages of 10 parameters, and 6 shared
    assert moved[Bucket.STAGE] == 2 * (10 + 10 + (0 if tied else 6))
    assert moved.get(Bucket.TIED) == (2 * 3 * 6 if tied else None)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_sharded_optimizer_gathers_parameters_after_the_update(tied: bool, replicas: int):
    conditions = conditions_of(2 * replicas, layers=2, network=True)
    plan = plan_of(conditions, stages=2, replicas=replicas, batch=replicas, tied=tied)
    sharded = replace(conditions, gathered_bytes=4.0)
    # Around a ring of n replicas, each link carries all shares but one: of the first stage, whose
    # embedding has 6 of its parameters, shared ones left out.
    largest = 4.0 * (10 + (0 if tied else 6))
    gather_s = (replicas - 1) * (largest / replicas / 8 + 0.25)
    assert plan_step_s(plan, sharded) - plan_step_s(plan, conditions) == pytest.approx(gather_s)
    spans = [span for span in simulate(plan_step(plan, sharded)).spans if span.name == "gather"]
    assert len(spans) == (plan.num_ranks if replicas > 1 else 0)
    moved = sum(each.num_bytes for one in plan_step(plan, sharded).gathers for each in one)
    assert moved == pytest.approx((replicas - 1) * (largest + 4.0 * 10))


def test_unlike_replicas_gather_one_segment_after_the_other():
    conditions = conditions_of(3, layers=4, network=True)
    config = decided(cuts=((3, 1), (4,)), shares=(1, 1))
    plan = default_plan(config, conditions.cluster, num_layers=4, batch=2, tied=False)
    sharded = replace(conditions, gathered_bytes=4.0)
    trace = simulate(plan_step(plan, sharded))
    gathers = sorted((s.rank, s.start_s, s.end_s) for s in trace.spans if s.name == "gather")
    assert [rank for rank, _, _ in gathers] == [0, 1, 2, 2]
    *_, (_, _, first_end_s), (_, second_start_s, _) = gathers
    assert second_start_s >= first_end_s


def test_a_stage_that_stays_inside_its_host_is_faster():
    conditions = conditions_of(2, layers=2, network=False, local_factor=0.5)
    apart = plan_of(conditions, stages=2, replicas=1, batch=1)
    job = plan_step(apart, conditions)
    assert job.forward_s == (1.0, 1.0)
    here = replace(conditions, cluster=cluster(2, bytes_per_s=np.inf, devices_per_host=2))
    assert plan_step(apart, here).forward_s == (0.5, 0.5)


@settings(deadline=None, max_examples=20)
@given(SIZES, st.integers(1, 6), st.sampled_from([0.25, 1.0]))
def test_the_first_rank_of_a_tied_pipeline_waits_for_nobody(
    layers: int, microbatches: int, latency_s: float
):
    """The last stage's gradient, and all scalars, are there when its last backward ends."""
    stages = 3
    conditions = conditions_of(stages, layers=stages * layers, network=False)
    where = cluster(stages, latency_s=latency_s, bytes_per_s=np.inf)
    conditions = replace(conditions, cluster=where)
    plan = plan_of(conditions, stages=stages, replicas=1, batch=microbatches, tied=True)
    plan = replace(plan, all_reduce=AllReduceKind.TREE)
    spans = simulate(plan_step(plan, conditions)).spans
    backwards = [s for s in spans if s.rank == 0 and s.lane is Lane.COMPUTE]
    updates_s = [s.start_s for s in sorted(spans, key=lambda s: s.rank) if s.lane is Lane.UPDATE]
    assert updates_s[0] == max(s.end_s for s in backwards)
    assert updates_s[1:] == pytest.approx([updates_s[0] + latency_s] * 2)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 2), st.integers(2, 4), SIZES)
def test_only_replicas_of_several_ranks_wait_for_the_norm(
    stages: int, replicas: int, microbatches: int
):
    """The norm comes from replica 0, a latency later; ranks of all stages know it themselves."""
    latency_s, num_ranks = 0.25, stages * replicas
    conditions = conditions_of(num_ranks, layers=stages, network=False)
    where = cluster(num_ranks, latency_s=latency_s, bytes_per_s=np.inf)
    conditions = replace(conditions, cluster=where)
    plan = plan_of(conditions, stages=stages, replicas=replicas, batch=replicas * microbatches)
    plan = replace(plan, all_reduce=AllReduceKind.TREE, sync_all=tuple(range(num_ranks)))
    spans = simulate(plan_step(plan, conditions)).spans
    reduced_s = {s.rank: s.end_s for s in spans if s.name == "reduce stage"}
    update_s = {s.rank: s.start_s for s in spans if s.lane is Lane.UPDATE}
    if stages == 1:
        assert update_s == pytest.approx(reduced_s)
    else:
        norm_s = max(reduced_s[0], reduced_s[1] + latency_s)
        assert update_s.pop(0) == pytest.approx(norm_s)
        assert list(update_s.values()) == pytest.approx([norm_s + latency_s] * (num_ranks - 1))


def test_messages_have_their_overhead():
    conditions = conditions_of(2, layers=2, network=True)
    plan = plan_of(conditions, stages=2, replicas=1, batch=1)
    heavier = replace(conditions, overheads=Overheads(messages=MessageCosts(overhead_s=1.0)))
    light_s, heavy_s = (
        max(
            span.end_s
            for span in simulate(plan_step(plan, each)).spans
            if span.lane is Lane.COMPUTE
        )
        for each in (conditions, heavier)
    )
    assert heavy_s - light_s == pytest.approx(2.0)  # an activation and a gradient
    assert simulate(plan_step(plan, heavier)).rank_names[0] == "stage 0 on h0:0"


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_split_backward_takes_the_parts_that_the_profile_says(share: float):
    conditions = conditions_of(2, layers=2, network=False)
    layers = tuple(
        replace(layer, backward_weight_s=share * layer.backward_s)
        for layer in conditions.profile.layers
    )
    conditions = replace(conditions, profile=replace(conditions.profile, layers=layers))
    job = plan_step(plan_of(conditions, stages=2, replicas=1, batch=4), conditions)
    assert job.backward_weight_s == pytest.approx((2.0 * share, 2.0 * share))


def test_the_software_of_ranks_takes_its_time():
    conditions = conditions_of(2, layers=2, network=False)
    plain = plan_of(conditions, stages=2, replicas=1, batch=1)
    software = Software(call_s=0.1, message_s=0.01, byte_s=0.001, step_s=1.0)
    busy = replace(conditions, profile=replace(conditions.profile, software=software))
    # Two forwards and two backwards in a row, each with one end of a message of 4 bytes.
    expected = plan_step_s(plain, conditions) + 4 * (0.1 + 0.014) + 1.0
    assert plan_step_s(plain, busy) == pytest.approx(expected)
    alone = plan_of(conditions, stages=1, replicas=2, batch=2)
    assert plan_step_s(alone, busy) == pytest.approx(plan_step_s(alone, conditions) + 0.2 + 1.0)


def test_a_split_backward_may_take_longer_than_a_whole_one():
    conditions = conditions_of(2, layers=2, network=False)
    layers = tuple(
        replace(layer, backward_input_s=1.5, backward_weight_s=1.0)
        for layer in conditions.profile.layers
    )
    split = replace(conditions, profile=replace(conditions.profile, layers=layers))
    plan = plan_of(conditions, stages=1, replicas=1, batch=3)
    whole_s = plan_step_s(plan, split)
    assert whole_s == plan_step_s(plan, conditions)
    zero_bubble = replace(plan, schedule=ScheduleKind.ZB_H1)
    assert plan_step_s(zero_bubble, split) == pytest.approx(whole_s + 3 * 2 * 0.5)
