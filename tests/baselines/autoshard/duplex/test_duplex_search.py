"""The search against all strategies of small graphs, whose time two streams of events give."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.duplex import (
    PARTIAL,
    CollectiveProfile,
    CostModel,
    DeviceSpeed,
    LabelledGraph,
    LabelledOperator,
    Linearity,
    OperatorDecision,
    memory_bytes,
    search,
    step_s,
)
from jaxpipe.baselines.autoshard.duplex.decision import Held, conversions, held_after, options
from jaxpipe.baselines.autoshard.duplex.form import FULL
from jaxpipe.baselines.autoshard.duplex.stage_seconds import StageSeconds, costs_of, stages
from jaxpipe.errors import PlanError

SIZES = {"b": 12.0, "d": 6.0, "f": 8.0}


def chain(flops: list[float]) -> LabelledGraph:
    """Return a small network: two products with parameters, a sum with the stream, and the loss."""
    operators = (
        LabelledOperator(
            name="up", equation="bd,df->bf", inputs=("x", "w1"), output="h", flops=flops[0]
        ),
        LabelledOperator(
            name="down", equation="bf,fd->bd", inputs=("h", "w2"), output="y", flops=flops[1]
        ),
        LabelledOperator(
            name="add",
            equation="bd,bd->bd",
            inputs=("x", "y"),
            output="z",
            flops=flops[2],
            linearity=Linearity.SUM,
        ),
        LabelledOperator(
            name="loss",
            equation="bd->",
            inputs=("z",),
            output="loss",
            flops=flops[3],
            linearity=Linearity.NONE,
            unsplit=frozenset("d"),
        ),
    )
    return LabelledGraph(
        operators=operators,
        sizes=SIZES,
        inputs=frozenset("x"),
        parameters=frozenset({"w1", "w2"}),
    )


def every_strategy(model: CostModel) -> Iterator[tuple[OperatorDecision, ...]]:
    """Yield all strategies, with all divisions into stages."""
    graph = model.graph
    last_reads = graph.last_reads()

    def rest(index: int, held: Held) -> Iterator[tuple[OperatorDecision, ...]]:
        if index == len(graph.operators):
            if PARTIAL in held[graph.operators[-1].output]:
                yield ()
            return
        operator = graph.operators[index]
        for signature, stored in options(operator, graph, num_devices=model.profile.devices):
            for moved in conversions(operator, signature, graph, held):
                decision = OperatorDecision(signature, moved, stored)
                after = held_after(operator, decision, held, last_read=last_reads[index])
                for others in rest(index + 1, after):
                    yield (replace(decision, starts_stage=True), *others)
                    if not moved and index:
                        yield (decision, *others)

    yield from rest(0, {"x": frozenset({FULL})})


def by_events_s(steps: list[StageSeconds], *, overlaps_backward: bool) -> float:
    """Play a step slot by slot: in each, one stream computes and the other communicates."""
    slots: list[tuple[float, float]] = []  # seconds of compute, seconds of communication
    waiting: list[float] = []  # compute of half b, which runs under the next stage
    for step in steps:
        slots.append((waiting.pop() if waiting else 0.0, step.gather_s + step.forward_s))
        slots.append((step.compute_s, step.forward_s))
        waiting.append(step.compute_s)
    slots.append((waiting.pop(), 0.0))
    total = sum(max(slot) for slot in slots)
    slots.clear()
    for step, earlier in pairwise([*reversed(steps), None]):
        assert step is not None
        if step is steps[-1]:
            slots.append((2 * step.compute_s, 0.0))
        slots.append((2 * step.compute_s, step.backward_s))
        slots.append((2 * earlier.compute_s if earlier else 0.0, step.backward_s + step.sync_s))
    return total + sum(max(slot) if overlaps_backward else sum(slot) for slot in slots)


speeds = st.floats(min_value=1.0, max_value=100.0)
models = st.builds(
    lambda flops, rates, latency, devices, overlaps: CostModel(
        graph=chain(flops),
        device=DeviceSpeed(flops_per_s=10.0, memory_bytes_per_s=40.0, update_bytes=1.0),
        profile=CollectiveProfile(
            devices=devices,
            latency_s=latency,
            all_gather=rates[0],
            all_reduce=rates[1],
            reduce_scatter=rates[2],
            all_to_all=rates[3],
        ),
        overlaps_backward=overlaps,
    ),
    st.lists(st.floats(min_value=0.0, max_value=1e3), min_size=4, max_size=4),
    st.lists(speeds, min_size=4, max_size=4),
    st.floats(min_value=0.0, max_value=10.0),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models)
def test_search_is_as_fast_as_the_best_of_all_strategies(model: CostModel) -> None:
    found = search(model)
    everything = list(every_strategy(model))
    best = min(_played_s(model, each) for each in everything)
    assert found.seconds == pytest.approx(best, rel=1e-9)
    assert found.seconds == pytest.approx(step_s(model, found.strategy), rel=1e-9)
    assert found.seconds == pytest.approx(_played_s(model, found.strategy), rel=1e-9)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models, st.floats(min_value=0.0, max_value=1.0))
def test_search_is_as_fast_as_the_best_that_fits(model: CostModel, part: float) -> None:
    sizes = [(memory_bytes(model, each), each) for each in every_strategy(model)]
    least, most = min(each[0] for each in sizes), max(each[0] for each in sizes)
    limit = least + part * (most - least)
    best = min(_played_s(model, each) for size, each in sizes if size <= limit * (1 + 1e-12))
    found = search(model, memory_limit_bytes=limit * (1 + 1e-12))
    assert found.memory_bytes <= limit * (1 + 1e-9)
    assert found.seconds == pytest.approx(best, rel=1e-9)


def test_too_little_memory_is_an_error() -> None:
    model = CostModel(
        graph=chain([1.0] * 4),
        device=DeviceSpeed(flops_per_s=1.0),
        profile=CollectiveProfile(devices=2),
    )
    with pytest.raises(PlanError, match="no strategy fits into `memory_limit_bytes` 1; allow more"):
        search(model, memory_limit_bytes=1.0)


def test_a_loss_that_no_device_can_sum_is_an_error() -> None:
    graph = replace(
        chain([1.0] * 4),
        operators=(
            *chain([1.0] * 4).operators[:3],
            LabelledOperator(
                name="loss",
                equation="bd->",
                inputs=("z",),
                output="loss",
                linearity=Linearity.NONE,
                unsplit=frozenset("bd"),
            ),
        ),
    )
    model = CostModel(
        graph=graph, device=DeviceSpeed(flops_per_s=1.0), profile=CollectiveProfile(devices=2)
    )
    with pytest.raises(PlanError, match="must sum the loss over a label that can split"):
        search(model)


def _played_s(model: CostModel, strategy: tuple[OperatorDecision, ...]) -> float:
    costs = costs_of(model, strategy)
    steps = stages(costs, strategy)
    played_s = by_events_s(steps, overlaps_backward=model.overlaps_backward)
    return played_s + sum(each.update_s for each in costs)
