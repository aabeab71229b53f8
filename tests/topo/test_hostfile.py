"""Hostfiles and rankfiles: what is read, what is written, and what mpirun makes of it."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.topo import Cluster, load
from jaxpipe.topo.hostfile import (
    mpich_hostfile,
    openmpi_hostfile,
    openmpi_rankfile,
    parse_hostfile,
)
from tests.helpers import mpi_command, mpi_environment
from tests.topo.strategies import clusters


def slots(text: str) -> dict[str, int]:
    return {entry.host: entry.num_slots for entry in parse_hostfile(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1 slots=4\nn2 slots=2 max_slots=8\n", {"n1": 4, "n2": 2}),
        ("n1:4\nn2:2 binding=user:0,1\n", {"n1": 4, "n2": 2}),
        ("n1\nn1\nn2\n", {"n1": 2, "n2": 1}),
        ("# all\n\nn1 slots=1 # the first\n", {"n1": 1}),
        ("n2:1\nn1:1\nn2:1\n", {"n2": 2, "n1": 1}),
    ],
)
def test_both_kinds_are_read(text: str, expected: dict[str, int]):
    assert slots(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot parse the hostfile: it must have a line for each host"),
        ("n1 slots=0", "line 1 of a hostfile must be .* something else"),
        ("n1\nn2:many", "line 2 of a hostfile must be"),
        (":4", "line 1 of a hostfile must be"),
        (f"n1:{'9' * 5000}", "line 1 of a hostfile must be"),
        ("n1 slots=2 slots=3", "line 1 of a hostfile must be"),
        ("n1:2 slots=3", "line 1 of a hostfile must be"),
        ("n1 4", "line 1 of a hostfile must be"),
        ("n1 slots= ", "line 1 of a hostfile must be"),
        ("n1 slot=4", "no other setting than .*, slots"),
        ("n1 slots=\u0664", "line 1 of a hostfile must be"),
        ("n1.\n", "line 1 of a hostfile must be"),
        ("a..b slots=2", "line 1 of a hostfile must be"),
        ("root:$6$x:1:0", "line 1 of a hostfile must be"),
    ],
)
def test_wrong_hostfiles_are_refused(text: str, words: str):
    with pytest.raises(ValueError, match=words):
        parse_hostfile(text)


def test_a_placement_is_written_for_both():
    cluster = load("homogeneous:hosts=2,devices=2")
    assert openmpi_hostfile(cluster) == "here-0 slots=2\nhere-1 slots=2\n"
    assert openmpi_rankfile(cluster, (1, 2, 0)) == (
        "rank 0=here-0 slot=1\nrank 1=here-1 slot=0\nrank 2=here-0 slot=0\n"
    )
    assert mpich_hostfile(cluster, (1, 0, 2)) == "here-0:2\nhere-1:1\n"
    assert mpich_hostfile(cluster, (1, 2, 0)) == "here-0:1\nhere-1:1\nhere-0:1\n"


@given(cluster=clusters(), data=st.data())
def test_what_is_written_is_read(cluster: Cluster, data: st.DataObject):
    devices = data.draw(st.permutations(range(len(cluster))))
    expected = {host.name: cluster.host_of.count(i) for i, host in enumerate(cluster.hosts)}
    assert slots(openmpi_hostfile(cluster)) == expected
    assert slots(mpich_hostfile(cluster, devices)) == expected
    on_line = [
        entry.host
        for line in mpich_hostfile(cluster, devices).splitlines()
        for entry in parse_hostfile(line)
        for _ in range(entry.num_slots)
    ]
    assert on_line == [cluster.devices[device].host for device in devices]


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ((0, 4), "from 0 to 3 in cluster 'two-region'; rank 1 is on device 4"),
        ((-1,), "rank 0 is on device -1"),
        ((1, 1), "`devices` must name each device once"),
    ],
)
def test_wrong_placements_are_refused(devices: tuple[int, ...], words: str):
    with pytest.raises(ValueError, match=words):
        openmpi_rankfile(load("two-region"), devices)
    with pytest.raises(ValueError, match=words):
        mpich_hostfile(load("two-region"), devices)


@pytest.mark.mpi
def test_mpirun_takes_the_files(tmp_path: Path):
    """Three ranks on this host in an order of their own: mpirun starts them where it is told."""
    if "Open MPI" not in subprocess.check_output([mpi_command(1)[0], "--version"], text=True):
        pytest.skip("this mpirun is not Open MPI's")
    path = tmp_path / "here.toml"
    path.write_text('name = "here"\n[[hosts]]\nname = "localhost"\ndevices = 3\n')
    cluster = load(str(path))
    (tmp_path / "hosts").write_text(openmpi_hostfile(cluster))
    (tmp_path / "ranks").write_text(openmpi_rankfile(cluster, (2, 0, 1)))
    program, *root = mpi_command(1)[: mpi_command(1).index("-n")]
    command = [
        *(program, *root, "--hostfile", "hosts", "--bind-to", "none"),
        *("--map-by", "rankfile:FILE=ranks", "-n", "3"),  # a path with "pe" in it is taken for PE=
        *("sh", "-c", "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=mpi_environment(),
        timeout=60,
        check=False,
    )
    assert sorted(done.stdout.split("\n")) == ["", "0 of 3", "1 of 3", "2 of 3"], done.stderr
