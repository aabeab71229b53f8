"""Emulated steps: the programs of the systems cost what was simulated, and ranks run them."""

import pytest

from experiments.hidup.emulated import measured_bars
from experiments.hidup.emulated_links import (
    cluster_of,
    devices_of_host,
    nic_bytes_per_s,
    profile_of_links,
)
from experiments.hidup.emulated_rank import emulated_s, from_cells, to_cells
from experiments.hidup.step_program import (
    Await,
    Communicate,
    Compute,
    Program,
    program_of,
    simulated_s,
)
from experiments.hidup.workloads import Bar, fitted, workload
from jaxpipe.baselines.autoshard.duplex import CollectiveProfile
from jaxpipe.baselines.autoshard.duplex.duplex_systems import predicted_step_s
from jaxpipe.baselines.systems import System
from jaxpipe.collective.kinds import CollectiveKind
from jaxpipe.comm import Transport
from jaxpipe.comm.local import run_ranks

PROFILE = CollectiveProfile(
    devices=4, latency_s=3e-4, all_gather=8.0, all_reduce=4.0, reduce_scatter=8.0, all_to_all=32.0
)


@pytest.mark.parametrize(
    "system", [System.HIDUP, System.DEEPSPEED_MOE, System.FASTMOE, System.HOROVOD, System.DDP]
)
def test_a_program_takes_what_is_predicted(system: System) -> None:
    bar = Bar(figure=8, condition="20 Gbps", model="vit-switch", system=system)
    work = workload(bar, fitted())
    seconds = simulated_s(program_of(system, work), work.profile)
    # HiDup's collectives of parameters are fused by stage, which saves latencies.
    near = 0.02 if system is System.HIDUP else 1e-9
    assert seconds == pytest.approx(predicted_step_s(system, work), rel=near)


def test_speeds_that_agree_give_links_with_the_speeds_of_the_profile() -> None:
    assert nic_bytes_per_s(PROFILE, on_host=1) == pytest.approx(6.0)
    assert profile_of_links(PROFILE, on_host=1).all_to_all == pytest.approx(32.0)


def test_eight_ranks_have_a_condition_of_figure_6_and_four_of_figure_8() -> None:
    bars = measured_bars(["vit-switch"], num_devices=8)
    assert len(bars) == 5 * 3
    assert {devices_of_host(bar, 8) for bar in bars} == {1, 4}
    assert {bar.condition for bar in measured_bars([], num_devices=64)} == {"64 GPUs"}


def test_figure_7_is_of_one_host_whose_devices_have_ports_of_their_own() -> None:
    for number in (2, 4, 8):
        bars = measured_bars(["figure-7", "vit-switch"], num_devices=number)
        assert {(bar.figure, bar.condition) for bar in bars} == {(7, f"{number} GPUs")}
        assert [devices_of_host(bar, number) for bar in bars] == [1] * 5


def test_a_program_is_what_is_broadcast() -> None:
    program: Program = (Compute(0.5), Communicate(CollectiveKind.ALL_TO_ALL, 2.0), Await(1))
    assert from_cells(to_cells(program)) == program


@pytest.mark.parametrize("kind", list(CollectiveKind))
def test_ranks_wait_for_a_collective(kind: CollectiveKind) -> None:
    program: Program = (Compute(1.0), Communicate(kind, 16.0), Await(1), Compute(1.0))
    # A busy machine makes an emulated message late, and never early.
    assert _emulated_s(program) > simulated_s(program, PROFILE) - 0.01


def test_a_collective_runs_beside_a_compute() -> None:
    program: Program = (Communicate(CollectiveKind.ALL_TO_ALL, 160.0), Compute(20.0), Await(1))
    assert _emulated_s(program) == pytest.approx(20.0)


def _emulated_s(program: Program) -> float:
    cluster = cluster_of(PROFILE, on_host=1)

    def work(transport: Transport) -> tuple[float, float] | None:
        return emulated_s(program, cluster, transport, stretch=0.1)

    return next(each for each in run_ranks(4, work) if each is not None)[0]
