"""The parts of a decision against trying all: cuts, sync trees, shapes, changes."""

from dataclasses import replace
from itertools import accumulate, combinations, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxpipe.collective import ranks
from jaxpipe.errors import PlanError
from jaxpipe.plan import check_plan, even_partition
from jaxpipe.plan.cost import links_between, tree_s
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Task, balanced_cut, build, fastest_tree, shapes
from jaxpipe.search.generators.changes import neighbour
from jaxpipe.topo.toml_text import parse_toml, toml_pair
from tests.plan.models import cluster_of, profile_of

SEEDS = st.integers(0, 2**32 - 1)


@given(st.integers(1, 4), st.integers(0, 5), SEEDS)
def test_a_balanced_cut_is_the_best(stages: int, spare: int, seed: int):
    profile = profile_of(stages + spare)
    slow = np.random.default_rng(seed).uniform(0.5, 3, stages)
    cut = balanced_cut(profile, slow)

    def slowest(cut: tuple[int, ...]) -> float:
        return max(n * s for n, s in zip(cut, slow, strict=True))

    cuts = [
        tuple(b - a for a, b in pairwise((0, *inner, stages + spare)))
        for inner in combinations(range(1, stages + spare), stages - 1)
    ]
    assert sum(cut) == stages + spare
    assert slowest(cut) == pytest.approx(min(map(slowest, cuts)))


@given(st.integers(1, 4), st.lists(st.integers(1, 9), min_size=4, max_size=8), st.integers(0, 15))
@example(num_stages=4, layers=[5, 1, 5, 4, 8, 5, 5], head=12)
def test_of_equally_slow_cuts_the_one_with_the_least_squares_is_taken(
    num_stages: int, layers: list[int], head: int
):
    profile = profile_of(len(layers))
    timed = [replace(profile.layers[0], forward_s=float(each), backward_s=0.0) for each in layers]
    profile = replace(
        profile,
        layers=tuple(timed),
        embed=replace(profile.embed, forward_s=0.0, backward_s=0.0),
        head=replace(profile.head, forward_s=float(head), backward_s=0.0),
    )

    def value(cut: tuple[int, ...]) -> tuple[int, int]:
        edges = pairwise((0, *accumulate(cut)))
        seconds = [sum(layers[start:stop]) for start, stop in edges]
        seconds[-1] += head
        return max(seconds), sum(each**2 for each in seconds)

    cuts = [
        tuple(b - a for a, b in pairwise((0, *inner, len(layers))))
        for inner in combinations(range(1, len(layers)), num_stages - 1)
    ]
    assert value(balanced_cut(profile, np.ones(num_stages))) == min(map(value, cuts))


@given(st.integers(1, 6), st.integers(0, 9))
def test_equal_devices_get_equal_layers(stages: int, spare: int):
    cut = balanced_cut(profile_of(stages + spare), np.ones(stages))
    assert sorted(cut) == sorted(even_partition(num_layers=stages + spare, num_stages=stages))


def test_too_many_stages_are_refused():
    with pytest.raises(PlanError, match=r"3 stages, but the model has 2 layers; use at most 2"):
        balanced_cut(profile_of(2), np.ones(3))


@given(st.integers(1, 6), SEEDS)
def test_the_fastest_tree_holds_all_and_is_no_slower_than_the_plain_ones(count: int, seed: int):
    cluster = cluster_of(*[1.0] * count, seed=seed, symmetric=False)
    devices = {index: index for index in range(count)}
    tree = fastest_tree(cluster, devices, num_bytes=1e5)
    assert sorted(ranks(tree)) == list(range(count))
    links = links_between(cluster, tuple(range(count)))
    flat = tuple(range(count)) if count > 1 else 0
    assert tree_s(links, tree, num_bytes=1e5) <= tree_s(links, flat, num_bytes=1e5)


def test_the_tree_of_many_ranks_is_one_that_a_plan_file_can_hold():
    cluster = cluster_of(*[1.0] * 600)
    devices = {index: index for index in range(600)}
    # Many chunks favour a chain, whose arrays would be nested deeper than TOML readers follow.
    tree = fastest_tree(cluster, devices, num_bytes=1e9, chunk_bytes=1e6)
    assert sorted(ranks(tree)) == list(range(600))
    assert parse_toml(toml_pair("sync", tree))


@pytest.mark.parametrize(
    ("devices", "layers", "batch", "expected"),
    [
        (1, 1, 1, {(1, 1)}),
        (4, 2, 4, {(1, 4), (1, 2), (1, 1), (2, 2), (2, 1)}),
        (3, 3, 2, {(1, 2), (1, 1), (2, 1), (3, 1)}),
    ],
)
def test_shapes_fit_devices_layers_and_batch(
    devices: int, layers: int, batch: int, expected: set[tuple[int, int]]
):
    task = Task(cluster=cluster_of(*[1.0] * devices), profile=profile_of(layers), batch=batch)
    assert {(shape.stages, shape.replicas) for shape in shapes(task)} == expected


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), SEEDS)
def test_changes_are_plans_too(stages: int, replicas: int, spare: int, seed: int):
    cluster = cluster_of(*[1.0] * (stages * replicas + spare), seed=seed)
    task = Task(cluster=cluster, profile=profile_of(stages + 1), batch=4 * replicas)
    placement = np.arange(stages * replicas).reshape(replicas, stages)
    plan = build(task, placement, microbatch=1, schedule=ScheduleKind.ONE_F_ONE_B)
    random = np.random.default_rng(seed)
    for _ in range(5):
        plan = neighbour(task, plan, random=random)
        check_plan(plan, num_devices=len(cluster))
        assert sum(plan.cut) == stages + 1
