"""Systems under one cost model: what they move and overlap, and closed forms of their time."""

from dataclasses import replace
from itertools import permutations
from math import exp
from statistics import NormalDist

import pytest

from jaxpipe.baselines.autoshard.duplex import CollectiveProfile, DeviceSpeed, TransformerSizes
from jaxpipe.baselines.autoshard.duplex.duplex_systems import DuplexWorkload, predicted_step_s
from jaxpipe.baselines.autoshard.duplex.routing_load import RoutingGroup, RoutingLoad
from jaxpipe.baselines.systems import System

DEVICES = 4
INSTANT = 1e30


def work(*, profile: CollectiveProfile, flops_per_s: float = INSTANT) -> DuplexWorkload:
    return DuplexWorkload(
        sizes=TransformerSizes(
            num_layers=2, dim=16, num_heads=4, sequence=8, vocabulary=32, outputs=32
        ),
        load=RoutingLoad(
            num_experts=4,
            num_devices=DEVICES,
            experts_per_token=1,
            capacity_factor=1.0,
            tokens=8,
            sequences=2,
        ),
        device=DeviceSpeed(flops_per_s=flops_per_s, memory_bytes_per_s=INSTANT),
        profile=profile,
    )


DENSE = 4 * (2 * 32 * 16 + 2 * 4 * 16**2 + 8 * 16**2 + 16 * 4)
"""Bytes: tables, two attentions, one MLP, one router."""
EXPERTS = 4 * 4 * 8 * 16**2
EXCHANGED = 4 * (DEVICES * 2) * 8 * 16
"""Bytes of an all-to-all: a row for each token, of all devices."""


def test_split_experts_exchange_four_times_and_add_dense_gradients() -> None:
    seconds = predicted_step_s(
        System.GSHARD, work(profile=CollectiveProfile(devices=DEVICES, all_to_all=1.0))
    )
    assert seconds == pytest.approx(4 * EXCHANGED)
    seconds = predicted_step_s(
        System.GSHARD, work(profile=CollectiveProfile(devices=DEVICES, all_reduce=1.0))
    )
    assert seconds == pytest.approx(DENSE)


@pytest.mark.parametrize("system", [System.DDP, System.HOROVOD])
def test_replicated_experts_add_all_gradients_and_exchange_nothing(system: System) -> None:
    profile = CollectiveProfile(
        devices=DEVICES, all_to_all=1e-9, all_gather=1e-9, reduce_scatter=1e-9, all_reduce=1.0
    )
    assert predicted_step_s(system, work(profile=profile)) == pytest.approx(DENSE + EXPERTS)


def test_zero3_gathers_twice_and_scatters_once() -> None:
    profile = CollectiveProfile(devices=DEVICES, all_gather=1.0, reduce_scatter=0.5)
    seconds = predicted_step_s(System.ZERO3, work(profile=profile))
    assert seconds == pytest.approx((2 + 2) * (DENSE + EXPERTS))


def test_buckets_hide_all_but_the_last_under_the_backward() -> None:
    """With little to compute ddp takes as long as its network, with much as long as its compute."""
    slow = CollectiveProfile(devices=DEVICES, all_reduce=1.0)
    fast = CollectiveProfile(devices=DEVICES)
    computed = predicted_step_s(System.DDP, work(profile=fast, flops_per_s=1.0))
    assert predicted_step_s(System.DDP, work(profile=slow, flops_per_s=1.0)) <= computed + (
        DENSE + EXPERTS
    )


def test_duplex_is_never_slower_than_hidup_which_overlaps_only_the_forward() -> None:
    profile = CollectiveProfile(
        devices=DEVICES,
        all_to_all=1e6,
        all_reduce=3e5,
        all_gather=5e5,
        reduce_scatter=5e5,
    )
    given = work(profile=profile, flops_per_s=1e8)
    hidup = predicted_step_s(System.HIDUP, given)
    assert predicted_step_s(System.DUPLEX, given) <= hidup
    assert hidup <= predicted_step_s(System.GSHARD, given)


def test_masks_of_a_device_cost_the_square_of_its_tokens() -> None:
    load = work(profile=CollectiveProfile(devices=DEVICES)).load
    few = load.sizes(RoutingGroup.DEVICE)
    many = replace(load, sequences=2 * load.sequences).sizes(RoutingGroup.DEVICE)
    assert many.mask_slots == 2 * few.mask_slots
    assert many.slots == few.slots


@pytest.mark.parametrize("experts_per_token", [1, 2])
@pytest.mark.parametrize("experts_per_device", [1, 2])
def test_without_a_spread_every_device_is_equally_full(
    experts_per_token: int, experts_per_device: int
) -> None:
    load = RoutingLoad(
        num_experts=8 * experts_per_device,
        num_devices=8,
        experts_per_token=experts_per_token,
        capacity_factor=1.25,
        tokens=128,
        sequences=16,
    )
    assert load.fullest(8) == pytest.approx(1.0)
    assert 1.0 < replace(load, spread=1.0).fullest(8) < 8.0


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_a_second_choice_is_one_of_the_other_experts(spread: float) -> None:
    """Against all ordered pairs of experts, drawn without replacement."""
    load = RoutingLoad(
        num_experts=5,
        num_devices=5,
        experts_per_token=2,
        capacity_factor=1.0,
        tokens=1,
        sequences=1,
        spread=spread,
    )
    weights = [exp(spread * NormalDist().inv_cdf((each + 0.5) / 5)) for each in range(5)]
    chosen = [0.0] * 5
    for first, second in permutations(range(5), 2):
        others = sum(weights) - weights[first]
        likely = weights[first] / sum(weights) * weights[second] / others
        chosen[first] += likely
        chosen[second] += likely
    assert sum(chosen) == pytest.approx(2.0)
    assert load.fullest(5) == pytest.approx(5 * max(chosen) / 2)
    assert load.fullest(1) == pytest.approx(1.0)


def test_without_a_capacity_messages_wait_for_the_fullest_host() -> None:
    even = work(profile=CollectiveProfile(devices=DEVICES, all_to_all=1.0))
    uneven = replace(even, load=replace(even.load, spread=1.5), hosts=2)
    factor = uneven.load.fullest(2)
    assert 1.0 < factor < 2.0
    assert predicted_step_s(System.FASTMOE, uneven) == pytest.approx(4 * EXCHANGED * factor)
    # Inside a host, and with a capacity, they are even.
    assert predicted_step_s(System.FASTMOE, replace(uneven, hosts=1)) == pytest.approx(
        4 * EXCHANGED
    )
    assert predicted_step_s(System.GSHARD, uneven) == pytest.approx(4 * EXCHANGED)


@pytest.mark.parametrize(("hosts", "local_experts", "groups"), [(1, 1, 0), (2, 1, 4), (2, 3, 12)])
def test_groups_of_messages_between_hosts_are_as_many_as_local_experts(
    hosts: int, local_experts: int, groups: int
) -> None:
    given = work(profile=CollectiveProfile(devices=DEVICES))
    load = replace(given.load, num_experts=local_experts * DEVICES)
    given = replace(given, load=load, hosts=hosts)
    for system, number in ((System.FASTMOE, groups), (System.GSHARD, 0)):
        more_s = predicted_step_s(system, replace(given, group_s=0.5))
        assert more_s - predicted_step_s(system, given) == pytest.approx(0.5 * number)


def test_a_benchmark_may_leave_out_the_sum_of_gradients() -> None:
    given = work(profile=CollectiveProfile(devices=DEVICES, all_reduce=1.0))
    assert predicted_step_s(System.FASTMOE, given) == pytest.approx(DENSE)
    unsummed = replace(given, unsummed=frozenset({System.FASTMOE}))
    assert predicted_step_s(System.FASTMOE, unsummed) == pytest.approx(0.0, abs=1e-6)
    assert predicted_step_s(System.GSHARD, unsummed) == pytest.approx(DENSE)
