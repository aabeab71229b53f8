"""The bars of HiDup's figures: which there are, their clusters, errors and orders."""

import pytest

from experiments.hidup.accuracy import Grid, errors, in_order, is_judged, published
from experiments.hidup.reachable import network_s, order_rows
from experiments.hidup.workloads import Bar, Constants, bars, cluster, fitted, workload
from jaxpipe.baselines.autoshard.duplex import published_profiles
from jaxpipe.baselines.autoshard.duplex.duplex_systems import predicted_step_s
from jaxpipe.baselines.autoshard.duplex.routing_load import RoutingGroup
from jaxpipe.baselines.autoshard.duplex.transformer_graph import parameter_bytes
from jaxpipe.baselines.systems import System

FAST = Bar(figure=6, condition="8 GPUs", model="vit-switch", system=System.HIDUP)
MIDDLE = Bar(figure=6, condition="8 GPUs", model="vit-switch", system=System.FASTMOE)
SLOW = Bar(figure=6, condition="8 GPUs", model="vit-switch", system=System.DEEPSPEED_MOE)
THEIRS = {FAST: 1.0, MIDDLE: 1.01, SLOW: 2.0}


def test_every_published_bar_is_predicted_and_some_that_were_not_published() -> None:
    ours = set(bars())
    assert set(published()) <= ours
    unseen = {bar.condition for bar in ours - set(published()) if bar.system is not System.DDP}
    assert unseen == {"64 GPUs", "25 Gbps", "35 Gbps"}
    assert sum(map(is_judged, {bar.group for bar in published()})) == 16


def test_orders_may_differ_within_a_tie_alone() -> None:
    swapped = {FAST: 1.02, MIDDLE: 1.0, SLOW: 2.0}
    assert list(in_order(swapped, THEIRS).values()) == [False]
    assert list(in_order(swapped, THEIRS, tie=1.02).values()) == [True]
    wrong = {FAST: 1.0, MIDDLE: 3.0, SLOW: 2.0}
    assert list(in_order(wrong, THEIRS, tie=1.02).values()) == [False]


def test_errors_are_relative() -> None:
    assert errors({FAST: 1.5}, {FAST: 1.0}) == {FAST: 0.5}


def test_clusters_between_published_ones_are_between_them() -> None:
    low, high = (published_profiles()[f"v100-8x{count}-9.7gbps"] for count in (1, 8))
    found = cluster(6, "32 GPUs")
    assert found.devices == 32
    assert low.all_to_all < found.all_to_all < high.all_to_all
    limits = [cluster(8, f"{limit} Gbps").all_reduce for limit in (20, 25, 30, 35)]
    assert limits == sorted(limits)
    assert limits[0] == published_profiles()["v100-2x4-20gbps"].all_reduce


def test_no_bar_of_bert_is_below_the_network_alone_but_one_of_vit_is() -> None:
    theirs = published()
    for model, is_possible in (("bert-switch", True), ("vit-switch", False)):
        bar = Bar(figure=6, condition="32 GPUs", model=model, system=System.HIDUP)
        assert (theirs[bar] > network_s(bar)) is is_possible
        assert (
            network_s(bar, sequences=8)
            < network_s(bar)
            < predicted_step_s(System.DUPLEX, workload(bar, fitted()))
        )


def test_the_network_alone_of_a_system_without_overlap_is_its_collectives() -> None:
    """Four mixtures with four all-to-alls each, and one all-reduce."""
    bar = Bar(figure=6, condition="8 GPUs", model="vit-switch", system=System.DEEPSPEED_MOE)
    profile = cluster(6, "8 GPUs")
    rows = 4 * 16 * 8 * 64 * 768 * 1.25
    dense = sum(
        size
        for name, labels, size in parameter_bytes(
            workload(bar, fitted()).model(RoutingGroup.DEVICE, halves=1).graph
        )
        if "e" not in labels or "router" in name
    )
    moved = 16 * rows / profile.all_to_all + dense / profile.all_reduce
    assert network_s(bar) == pytest.approx(moved + 17 * profile.latency_s, rel=1e-6)


def test_the_network_alone_of_fastmoe_is_that_of_the_fullest_host() -> None:
    """Four all-to-alls and one of counts for each of four mixtures; gradients are not summed.

    Each all-to-all is two groups of messages, one for each local expert.
    """
    bar = Bar(figure=6, condition="32 GPUs", model="vit-switch", system=System.FASTMOE)
    work, profile = workload(bar, fitted()), cluster(6, "32 GPUs")
    rows = 4 * 16 * 32 * 64 * 768 * work.load.fullest(8)
    moved = 16 * rows / profile.all_to_all
    groups = 2 * 16 * work.group_s
    assert network_s(bar) == pytest.approx(moved + 20 * profile.latency_s + groups, rel=1e-6)


def test_wrong_orders_name_the_pair_and_its_distance() -> None:
    (row,) = order_rows({FAST: 1.02, MIDDLE: 1.0, SLOW: 2.0}, THEIRS)
    assert row["published"] == "hidup < fastmoe"
    assert row["by"] == "1.0%"
    assert not [*order_rows(THEIRS, THEIRS)]


def test_constants_are_fitted_without_a_condition_a_figure_and_a_model() -> None:
    slow = Bar(figure=7, condition="8 GPUs", model="bert-switch", system=System.DDP)
    theirs = {**THEIRS, slow: 1.0}
    right, wrong = (Constants(flops_per_s=1.0, efficiency=1.0, spread=each) for each in (0.0, 1.0))
    grid = Grid(theirs, {right: theirs, wrong: {bar: 2 * each for bar, each in theirs.items()}})
    rows = grid.left_out()
    assert [row["left out"] for row in rows] == [
        "figure 6, 8 GPUs",
        "figure 7, 8 GPUs",
        "figure 6",
        "figure 7",
        "vit-switch",
        "bert-switch",
    ]
    assert {(row["spread"], row["median error"]) for row in rows} == {(0.0, "0.0%")}
    assert grid.most_in_order() == (2, 2)


@pytest.mark.parametrize("system", [System.DEEPSPEED_MOE, System.FASTMOE])
def test_a_slower_network_takes_longer(system: System) -> None:
    def seconds(condition: str) -> float:
        bar = Bar(figure=8, condition=condition, model="vit-switch", system=system)
        return predicted_step_s(system, workload(bar, fitted()))

    assert seconds("20 Gbps") > seconds("35 Gbps")
