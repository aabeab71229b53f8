"""A smaller plan has the shape of the real one: its stages, kinds of replicas and sync trees."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.collective.sync_tree import ranks
from jaxpipe.config import Config, check_plan_fits, config_from
from jaxpipe.models import presets
from jaxpipe.plan import Plan
from jaxpipe.plan.check import check_plan
from jaxpipe.propose.decided_plan import decided_plan
from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.verify.smaller_model import MeshParts, smaller_model, smaller_sequence
from jaxpipe.verify.smaller_plan import Shrunk, shrunk

CLUSTER = topo.load("case5-worldwide")


@st.composite
def real_plans(draw: st.DrawFn) -> tuple[Config, Plan]:
    """Draw a plan of some of 64 devices in eight regions."""
    num_layers = draw(st.integers(1, 12))
    replicas = draw(st.integers(1, 10))

    def cut() -> list[int]:
        edges = draw(st.sets(st.integers(1, max(1, num_layers - 1)), max_size=5))
        inner = sorted(edge for edge in edges if edge < num_layers)
        return [b - a for a, b in zip((0, *inner), (*inner, num_layers), strict=True)]

    kinds = [cut() for _ in range(draw(st.integers(1, 2)))]
    cuts = [draw(st.sampled_from(kinds)) for _ in range(replicas)]
    microbatch = draw(st.integers(1, 4))
    counts = [draw(st.integers(1, 40)) for _ in range(replicas)]
    tree = {
        "run": {"folder": "run"},
        "data": {"folder": "data"},
        "model": {"preset": "tiny", "num_layers": num_layers, "tied": draw(st.booleans())},
        "plan": {
            "cluster": CLUSTER.name,
            "cuts": cuts,
            "shares": [microbatch * count for count in counts],
            "microbatch": microbatch,
            "schedule": draw(st.sampled_from(("1f1b", "gpipe", "zb-h2"))),
            # Set: the fastest one would be simulated, for a second, of each plan.
            "all_reduce": draw(st.sampled_from(AllReduceKind)),
        },
        "train": {"batch": microbatch * sum(counts)},
    }
    config = config_from(tree)
    return config, decided_plan(config, CLUSTER)


def edges_of(plan: Plan, replica: int) -> Sequence[int]:
    """Return where the stages of a replica begin and end among the segments of all replicas."""
    edges = list(accumulate(plan.segments, initial=0))
    cut = accumulate(plan.pipelines[replica].cut, initial=0)
    return [edges.index(edge) for edge in cut]


@settings(max_examples=40)
@given(real_plans())
def test_a_smaller_plan_has_the_shape_of_the_real_one(real: tuple[Config, Plan]):
    config, plan = real
    small = shrunk(config, plan)
    check_plan(small.plan, num_devices=len(CLUSTER))
    check_plan_fits(small.config, small.plan)
    replicas = replicas_of(plan, small)
    assert len(small.plan.segments) == len(plan.segments)
    order = sorted(range(len(plan.segments)), key=lambda n: plan.segments[n])
    assert [small.plan.segments[n] for n in order] == sorted(small.plan.segments)
    for number, replica in enumerate(replicas):
        assert edges_of(small.plan, number) == edges_of(plan, replica)
        before, after = plan.pipelines[replica], small.plan.pipelines[number]
        assert 0 < after.num_microbatches <= before.num_microbatches
        assert 0 < after.microbatch <= before.microbatch
    # Unequal shares stay unequal, in their order.
    pairs = [(plan.pipelines[r], small.plan.pipelines[n]) for n, r in enumerate(replicas)]
    for one, small_one in pairs:
        for other, small_other in pairs:
            assert (one.num_microbatches < other.num_microbatches) == (
                small_one.num_microbatches < small_other.num_microbatches
            )
    _check_that_all_kinds_remain(plan, small, replicas)


def _check_that_all_kinds_remain(plan: Plan, small: Shrunk, replicas: Sequence[int]) -> None:
    """Check that there are replicas of each kind, and trees over their ranks, in order."""
    kinds = {pipeline.shape for pipeline in plan.pipelines}
    assert {plan.pipelines[replica].shape for replica in replicas} == kinds
    for kind in kinds:
        alike = [r for r, pipeline in enumerate(plan.pipelines) if pipeline.shape == kind]
        assert len(set(alike) & set(replicas)) >= min(2, len(alike))
    for tree, small_tree in zip(plan.sync, small.plan.sync, strict=True):
        remaining = [rank for rank in ranks(tree) if rank in small.ranks]
        assert [small.ranks[rank] for rank in ranks(small_tree)] == remaining


def replicas_of(plan: Plan, small: Shrunk) -> list[int]:
    """Return the replicas of the real plan that remain."""
    return sorted({plan.replica(rank) for rank in small.ranks})


@given(
    preset=st.sampled_from(presets()),
    mesh=st.builds(
        MeshConfig,
        data=st.sampled_from((1, 2, 4)),
        context=st.sampled_from((1, 2)),
        tensor=st.sampled_from((1, 2, 4)),
    ),
)
def test_what_a_mesh_divides_it_still_divides(preset: str, mesh: MeshConfig):
    config = config_from(
        {"run": {"folder": "run"}, "data": {"folder": "data"}, "model": {"preset": preset}}
    )
    model, parts = config.model, MeshParts.of([mesh])
    if model.num_heads % mesh.tensor:
        return
    sequence = smaller_sequence(model, None, parts)
    num_layers = model.num_layers if getattr(model, "full_layers", ()) else 2  # they have numbers
    small = smaller_model(model, parts, num_layers=num_layers, sequence=sequence)
    assert small.num_heads % mesh.tensor == 0
    assert small.dim <= 16 * parts.of_parameters
    for name in ("dim", "vocabulary", "hidden"):
        if getattr(model, name) % parts.of_parameters == 0:
            assert getattr(small, name) % parts.of_parameters == 0, name


def test_what_is_not_run_is_listed():
    tree = {
        "run": {"folder": "run"},
        "data": {"folder": "data"},
        "model": {"preset": "tiny"},
        "comm": {"gradients": "int8"},
        "plan": {
            "cluster": CLUSTER.name,
            "stages": 2,
            "replicas": 2,
            "microbatch": 2,
            "schedule": "1f1b",
            "all_reduce": "hierarchical",
        },
    }
    config = config_from(tree)
    plan = decided_plan(config, CLUSTER)
    small = shrunk(config, plan)
    assert small.config.comm.gradients is CodecKind.INT8
    assert not any("codec" in line for line in small.left_out)
    library = shrunk(config, replace(plan, all_reduce=AllReduceKind.LIBRARY))
    assert library.plan.all_reduce is AllReduceKind.HIERARCHICAL
    assert any("of a library" in line for line in library.left_out)


def _eight_layers(**sections: dict[str, Any]) -> tuple[Config, Plan]:
    tree = {
        "run": {"folder": "run"},
        "data": {"folder": "data"},
        "model": {"preset": "tiny", "num_layers": 8},
        "plan": {
            "cluster": CLUSTER.name,
            "stages": 2,
            "replicas": 1,
            "microbatch": 2,
            "schedule": "1f1b",
        },
        **sections,
    }
    config = config_from(tree)
    return config, decided_plan(config, CLUSTER)


def test_layers_stay_where_frozen_parameters_count_them():
    config, plan = _eight_layers(train={"frozen": ["blocks.[0-3].*"]})
    assert shrunk(config, plan).plan.num_layers == 8
    unnumbered = replace(config, train=replace(config.train, frozen=("blocks.*.mlp.*",)))
    assert shrunk(unnumbered, plan).plan.num_layers == 4


def test_layers_stay_where_some_are_full():
    model = {"preset": "llama-tiny", "num_layers": 8, "window": 4}
    config, plan = _eight_layers(model=model)
    assert shrunk(config, plan).plan.num_layers == 4
    config, plan = _eight_layers(model={**model, "full_layers": [5]})
    small = shrunk(config, plan)
    assert small.plan.num_layers == 8
    assert small.config.model == replace(small.config.model, full_layers=(5,))
