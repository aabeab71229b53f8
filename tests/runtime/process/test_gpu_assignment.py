"""Which GPUs a rank takes: its own by its number on the host, unless it has been told."""

from pathlib import Path

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.runtime.process import gpu_assignment as local_devices
from jaxpipe.runtime.process.gpu_assignment import devices_of, memory_fraction, take_devices
from jaxpipe.topo.this_machine import count_gpus

LOCAL = "OMPI_COMM_WORLD_LOCAL_RANK"


@given(st.integers(1, 8), st.integers(1, 8))
def test_ranks_of_a_host_take_as_many_each_and_no_gpu_twice(num_ranks: int, each: int):
    taken = [
        devices_of({LOCAL: str(rank)}, per_rank=each, num_gpus=num_ranks * each)
        for rank in range(num_ranks)
    ]
    if num_ranks * each == 1:
        assert taken == [None]
    else:
        assert [gpu for own in taken for gpu in own or ()] == list(range(num_ranks * each))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({LOCAL: "1", "SLURM_LOCALID": "0"}, range(1, 2)),
        ({"MPI_LOCALRANKID": "2"}, range(2, 3)),
        ({"SLURM_LOCALID": "3"}, range(3, 4)),
        ({LOCAL: "5"}, range(1, 2)),
        ({}, None),
        ({LOCAL: "1", "JAX_CUDA_VISIBLE_DEVICES": "0"}, None),
    ],
)
def test_every_launcher_is_understood(environment: dict[str, str], expected: range | None):
    assert devices_of(environment, per_rank=1, num_gpus=4) == expected


@pytest.mark.parametrize(("each", "num_gpus"), [(1, 0), (1, 1), (2, 0), (4, 3)])
def test_where_there_is_nothing_to_choose_nothing_is_chosen(each: int, num_gpus: int):
    assert devices_of({LOCAL: "1"}, per_rank=each, num_gpus=num_gpus) is None


def test_devices_are_shared_in_turn_where_ranks_are_too_many():
    taken = [devices_of({LOCAL: str(rank)}, per_rank=2, num_gpus=5) for rank in range(3)]
    assert taken == [range(2), range(2, 4), range(2)]


@given(st.integers(1, 16), st.integers(1, 4), st.integers(1, 8))
def test_ranks_that_share_a_gpu_do_not_take_more_than_it_has(ranks: int, each: int, num_gpus: int):
    environment = {"OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks)}
    fraction = memory_fraction(environment, per_rank=each, num_gpus=num_gpus)
    users = [
        gpu
        for rank in range(ranks)
        for gpu in devices_of({LOCAL: str(rank)}, per_rank=each, num_gpus=num_gpus)
        or range(num_gpus)
    ]
    most = max(users.count(gpu) for gpu in range(num_gpus))
    if fraction is None:
        assert most == 1
    else:
        assert 0.5 < most * fraction < 1


@pytest.mark.parametrize("told", ["XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR"])
def test_what_the_environment_says_of_memory_stays(told: str):
    environment = {"MPI_LOCALNRANKS": "2", told: "x"}
    assert memory_fraction(environment, per_rank=1, num_gpus=1) is None


@pytest.mark.parametrize(
    ("told", "expected"), [(None, 2), ("", 0), ("-1", 0), ("3", 1), ("4, 6", 2), ("1,-1,2", 1)]
)
def test_gpus_are_counted_as_cuda_does(tmp_path: Path, told: str | None, expected: int):
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    environment = {} if told is None else {"CUDA_VISIBLE_DEVICES": told}
    assert count_gpus(environment, tmp_path) == expected


@pytest.mark.parametrize(("told", "expected"), [("4,6", ["1"]), ("6", []), ("", [])])
def test_jax_is_told_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, told: str, expected: list[str]
):
    updates: list[tuple[str, str]] = []
    monkeypatch.setattr(jax.config, "update", lambda name, value: updates.append((name, value)))
    take_devices({LOCAL: "1", "CUDA_VISIBLE_DEVICES": told}, each=1)
    assert updates == [("jax_cuda_visible_devices", value) for value in expected]
    assert local_devices.gpu_name(None, {}) == "GPU 0"
