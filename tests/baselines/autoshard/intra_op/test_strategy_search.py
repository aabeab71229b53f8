from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from jaxpipe.baselines.autoshard.graph import Graph, roles_of
from jaxpipe.baselines.autoshard.intra_op import (
    GradientReduction,
    Machine,
    SearchConfig,
    SearchedStrategy,
    find_strategy,
    price_strategy,
)
from jaxpipe.baselines.autoshard.strategy import (
    AxisLink,
    CollectiveKind,
    MeshShape,
    Pins,
    Shapes,
    ZeroLevel,
    by_hand,
    collective_s,
    parse_sharding,
    read_strategy,
    write_strategy,
)
from jaxpipe.errors import PlanError
from tests.baselines.autoshard.steps import Size, gpt_graph

pytestmark = pytest.mark.slow

NVLINK = AxisLink(latency_s=5e-6, bandwidth_bytes_per_s=1.3e11)
V100 = Machine(flops_per_s=6e13)
SLOW = Machine(flops_per_s=1e9, launch_s=1e-6)
LAN = AxisLink(latency_s=1e-5, bandwidth_bytes_per_s=1e8)
MEGATRON = {
    "qkv.kernel": -1,
    "qkv.bias": -1,
    "project.kernel": -2,
    "up.kernel": -1,
    "up.bias": -1,
    "down.kernel": -2,
    "embed.tokens": -2,
    "head.kernel": -1,
}


@cache
def small() -> Graph:
    return gpt_graph(Size(num_layers=1))


@cache
def wide(batch: int) -> Graph:
    return gpt_graph(
        Size(
            num_layers=4,
            dim=4096,
            num_heads=32,
            sequence=1024,
            vocabulary=51200,
            batch=batch,
            dtype="float16",
        )
    )


def on(dp: int, op: int, link: AxisLink = LAN) -> MeshShape:
    return MeshShape(dp=dp, op=op, dp_link=link, op_link=link)


def hand(
    graph: Graph, mesh: MeshShape, zero: ZeroLevel = ZeroLevel.NONE, *, megatron: bool = False
) -> Pins:
    def shapes(paths: tuple[str, ...]) -> Shapes:
        return {path: graph.arrays[graph.arguments[path]].shape for path in paths}

    roles = roles_of(graph)
    return by_hand(
        mesh,
        parameters=shapes(roles.parameters),
        optimizer=shapes(roles.optimizer),
        batch=shapes(roles.batch),
        zero=zero,
        split=MEGATRON if megatron else None,
    )


@cache
def found_on(dp: int, op: int) -> SearchedStrategy:
    return find_strategy(small(), on(dp, op), SLOW)


def kernels(found: SearchedStrategy, *, of: str = "state.params.blocks.0") -> dict[str, str]:
    return {
        path.removeprefix(f"{of}."): str(sharding)
        for path, sharding in found.priced.strategy.arguments.items()
        if path.startswith(of) and path.endswith("kernel")
    }


def seconds(found: SearchedStrategy) -> float:
    assert found.priced.strategy.seconds is not None
    return found.priced.strategy.seconds


def test_megatron_is_found_for_a_small_batch() -> None:
    found = find_strategy(wide(4), on(1, 4, NVLINK), V100)
    assert found.relaxed
    assert found.gap < 1e-6
    for layer in range(4):
        assert kernels(found, of=f"state.params.blocks.{layer}") == {
            "qkv.kernel": "RS1",
            "project.kernel": "S1R",
            "up.kernel": "RS1",
            "down.kernel": "S1R",
        }
    # Megatron: twice forward and twice backward in each layer.
    hidden = 4 * 1024 * 4096 * 2
    kinds = [each.kind for each in found.priced.collectives if each.num_bytes == hidden]
    assert kinds.count(CollectiveKind.ALL_REDUCE) == 16
    # Not Megatron: the table is split by columns. Its rows are gathered once for all who read them,
    # and so is the first norm; with the scatter of their gradient that is 3 parts of a ring, where
    # the two all-reduces of a table split by rows are 4.
    assert kinds.count(CollectiveKind.ALL_GATHER) == 2
    assert kinds.count(CollectiveKind.REDUCE_SCATTER) == 1
    by_hand = find_strategy(
        wide(4), on(1, 4, NVLINK), V100, pins=hand(wide(4), on(1, 4, NVLINK), megatron=True)
    )
    assert by_hand.priced.strategy.seconds is not None
    assert seconds(found) < by_hand.priced.strategy.seconds < 1.01 * seconds(found)


def test_data_parallelism_is_found_for_a_large_batch() -> None:
    config = SearchConfig(force_batch_axis=True, gradient_reduction=GradientReduction.ALL_REDUCE)
    found = find_strategy(wide(32), on(8, 1, NVLINK), V100, config=config)
    arguments = found.priced.strategy.arguments
    assert {str(arguments[path]) for path in roles_of(wide(32)).parameters} <= {"R", "RR"}
    assert {str(arguments[path]) for path in ("x", "y")} == {"S0R"}
    (gradients,) = [each for each in found.priced.collectives if each.num_bytes > 1000]
    assert gradients.kind is CollectiveKind.ALL_REDUCE


def test_the_free_search_parallelises_the_layers_of_a_large_batch_by_data() -> None:
    found = find_strategy(wide(32), on(8, 1, NVLINK), V100)
    for layer in range(4):
        assert set(kernels(found, of=f"state.params.blocks.{layer}").values()) == {"RR"}
    by_data = find_strategy(wide(32), on(8, 1, NVLINK), V100, pins=hand(wide(32), on(8, 1, NVLINK)))
    assert seconds(found) <= seconds(by_data) < 1.05 * seconds(found)


@pytest.mark.parametrize(
    ("dp", "op", "zero", "megatron"),
    [  # all pairs of two of them
        (4, 1, ZeroLevel.NONE, True),
        (4, 1, ZeroLevel.GRADIENTS, False),
        (4, 1, ZeroLevel.PARAMETERS, False),
        (1, 4, ZeroLevel.NONE, False),
        (1, 4, ZeroLevel.GRADIENTS, True),
        (1, 4, ZeroLevel.PARAMETERS, False),
        (2, 2, ZeroLevel.NONE, False),
        (2, 2, ZeroLevel.GRADIENTS, False),
        (2, 2, ZeroLevel.PARAMETERS, True),
    ],
)
def test_nothing_by_hand_is_predicted_to_be_faster(
    dp: int, op: int, zero: ZeroLevel, *, megatron: bool
) -> None:
    mesh = on(dp, op)
    free = found_on(dp, op)
    pins = hand(small(), mesh, zero, megatron=megatron)
    pinned = find_strategy(small(), mesh, SLOW, pins=pins)
    assert seconds(free) <= seconds(pinned) * (1 + 1e-9)
    arguments = pinned.priced.strategy.arguments
    assert all(arguments[path] == sharding for path, sharding in pins.arguments.items())


@pytest.mark.parametrize(("dp", "op"), [(1, 1), (1, 2), (4, 1), (2, 2), (2, 4)])
def test_the_seconds_are_those_of_the_collectives_and_the_products(dp: int, op: int) -> None:
    mesh = on(dp, op)
    found = found_on(dp, op)
    strategy = found.priced.strategy
    moved_s = sum(
        collective_s(each, mesh, launch_s=SLOW.launch_s) for each in found.priced.collectives
    )
    computed_s = sum(
        operator.flops / mesh.size(axes) / SLOW.flops_per_s
        for operator in small().operators
        for choice in [strategy.operators[operator.index]]
        for axes in [tuple({axis for each in choice.operands for axis in each.axes})]
    )
    assert seconds(found) == pytest.approx(moved_s + computed_s)
    assert price_strategy(small(), strategy, SLOW).strategy.seconds == strategy.seconds


def test_one_device_computes_and_moves_nothing() -> None:
    found = found_on(1, 1)
    assert found.priced.collectives == ()
    assert seconds(found) == pytest.approx(small().flops / SLOW.flops_per_s)


def test_a_found_strategy_is_written_read_and_replayed(tmp_path: Path) -> None:
    found = found_on(2, 2)
    path = tmp_path / "found.json"
    write_strategy(found.priced.strategy, path)
    again = price_strategy(small(), read_strategy(path), SLOW)
    assert again.collectives == found.priced.collectives
    assert again.memory == found.priced.memory


def test_a_strategy_is_for_one_step_and_one_mesh() -> None:
    strategy = find_strategy(small(), on(2, 1), SLOW).priced.strategy
    with pytest.raises(
        PlanError, match=r"'found' must shard each argument, and lacks `state\.params\.blocks\.1"
    ):
        price_strategy(gpt_graph(Size(num_layers=2)), strategy, SLOW)
    with pytest.raises(PlanError, match=r"cannot be as the strategy says"):
        price_strategy(small(), replace(strategy, mesh=on(1, 2)), SLOW)


def test_memory_makes_room_by_splitting_states() -> None:
    mesh = on(4, 1)
    whole = find_strategy(small(), mesh, SLOW, pins=hand(small(), mesh))
    limit = 0.7 * whole.priced.memory.peak
    fits = find_strategy(small(), mesh, SLOW, config=SearchConfig(memory_limit_bytes=limit))
    assert fits.priced.memory.peak <= limit
    with pytest.raises(PlanError, match=r"within `memory_limit_bytes` \(1\) .*raise them"):
        find_strategy(small(), mesh, SLOW, config=SearchConfig(memory_limit_bytes=1.0))


def test_gradients_are_scattered_where_asked() -> None:
    mesh = on(4, 1)
    config = SearchConfig(
        force_batch_axis=True, gradient_reduction=GradientReduction.REDUCE_SCATTER
    )
    found = find_strategy(small(), mesh, SLOW, config=config)
    assert found.priced.strategy.zero is ZeroLevel.GRADIENTS
    kinds = [each.kind for each in found.priced.collectives]
    assert CollectiveKind.REDUCE_SCATTER in kinds
    assert CollectiveKind.ALL_GATHER in kinds


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"state.parms.*": "RR"}, r"`arguments\.state\.parms\.\*` pins nothing"),
        ({"state.params.embed.positions": "S0R", "x": "S0"}, r"`arguments\.x` .* 'S0'.*pin it to"),
    ],
)
def test_pins_that_cannot_be_are_named(pins: dict[str, str], words: str) -> None:
    arguments = {path: parse_sharding(text) for path, text in pins.items()}
    with pytest.raises(PlanError, match=words):
        find_strategy(small(), on(2, 2), SLOW, pins=Pins(arguments=arguments))


def test_pinned_operators_stay() -> None:
    mesh = on(1, 2)
    index = next(o.index for o in small().operators if o.primitive == "dot_general")
    for text in ("S1RR", "RS1R", "RRS1", "RRR"):
        pins = Pins(operators={index: parse_sharding(text)})
        strategy = find_strategy(small(), mesh, SLOW, pins=pins).priced.strategy
        assert str(strategy.operators[index].results[0]) == text
    with pytest.raises(PlanError, match=r"`operators\.99999` pins nothing"):
        find_strategy(small(), mesh, SLOW, pins=Pins(operators={99999: parse_sharding("R")}))
