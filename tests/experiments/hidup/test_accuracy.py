"""The bars of HiDup's figures: which there are, their clusters, errors and orders."""

import pytest

from experiments.hidup.accuracy import errors, in_order, is_judged, published
from experiments.hidup.workloads import Bar, bars, cluster, fitted, workload
from jaxpipe.autoshard.duplex import published_profiles
from jaxpipe.autoshard.duplex.systems import System, predicted_step_s

FAST = Bar(figure=6, condition="8 GPUs", model="vit-switch", system=System.HIDUP)
MIDDLE = Bar(figure=6, condition="8 GPUs", model="vit-switch", system=System.FASTMOE)
SLOW = Bar(figure=6, condition="8 GPUs", model="vit-switch", system=System.DEEPSPEED)
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


@pytest.mark.parametrize("system", [System.DEEPSPEED, System.FASTMOE])
def test_a_slower_network_takes_longer(system: System) -> None:
    def seconds(condition: str) -> float:
        bar = Bar(figure=8, condition=condition, model="vit-switch", system=system)
        return predicted_step_s(system, workload(bar, fitted()))

    assert seconds("20 Gbps") > seconds("35 Gbps")
