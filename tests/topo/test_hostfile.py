"""Hostfiles and rankfiles: what is read, what is written, and what mpirun makes of it."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpipe.topo import Cluster, Device, load
from jaxpipe.topo.hostfile import (
    mpich_hostfile,
    openmpi_hostfile,
    openmpi_rankfile,
    parse_hostfile,
)
from jaxpipe.topo.names import is_address
from tests.helpers import mpi_command, mpi_environment
from tests.topo.strategies import clusters


def slots(text: str) -> dict[str, int]:
    return {entry.host: entry.num_slots for entry in parse_hostfile(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1 slots=4\nn2 slots=2 max_slots=8\n", {"n1": 4, "n2": 2}),
        ("n1:4\nn2:2\n", {"n1": 4, "n2": 2}),
        ("n1\nn1\nn2\n", {"n1": 2, "n2": 1}),
        ("# all\n\nn1 slots=1 # the first\n", {"n1": 1}),
        ("n2:1\nn1:1\nn2:1\n", {"n2": 2, "n1": 1}),
        ("\tn1 \v slots\f= 2 \r\nn2:1\r\n", {"n1": 2, "n2": 1}),
        ("// all\nn1 slots=2// the first\n", {"n1": 2}),
        ("n1 slots=2\nn1\n", {"n1": 3}),
        ("n1 max_slots=4\nn2 cpu-max=3 cpu=2\n", {"n1": 4, "n2": 2}),
        ("n[08-10,2]\nlogin,n2\n", {"n08": 1, "n09": 1, "n10": 1, "n2": 2, "login": 1}),
        ("n1*3\nn2\n", {"n1": 3, "n2": 1}),
        ("10.0.0.1 slots=2\n10.0.0.2:3\n", {"10.0.0.1": 2, "10.0.0.2": 3}),
        (f"{'x' * 63} slots=1\na_b.lab\n", {"x" * 63: 1, "a_b.lab": 1}),
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
        ("n1 slot=4", "no other setting than slots and max_slots"),
        ("n1 slots=2\nn1 slots=2", "line 2 of a hostfile gives slots to a host that has some"),
        ("n1\nn1 slots=2", "line 2 of a hostfile gives slots to a host that has some"),
        ("n1 slots=4 max_slots=2", "line 1 of a hostfile must be"),
        ("n1 max_slots=4 slots_max=4", "line 1 of a hostfile must be"),
        ("n1 slots=2 username=me", "line 1 of a hostfile sets `username`, .* ~/.ssh/config"),
        ("n1:2 user=me", "line 1 of a hostfile sets `user`"),
        ("n1\nn2 slots=2 port=2222", "line 2 of a hostfile sets `port`"),
        ("n1:2 binding=user:0,1", "line 1 of a hostfile sets `binding`"),
        ("n1:2 ifname=eth1", "sets `ifname`, .* an interface in `run.interface`"),
        ("me@n1 slots=2", "line 1 of a hostfile has a user before the host"),
        ("fd00::1 slots=2", "line 1 of a hostfile has an address of IPv6, .* /etc/hosts"),
        ("[fd00::1]:2", "line 1 of a hostfile has an address of IPv6"),
        ("fe80::1%eth0", "line 1 of a hostfile has an address of IPv6"),
        ("n[01-04] slots=2", "line 1 of a hostfile must be"),
        ("n[1-2]:2", "line 1 of a hostfile must be"),
        ("n[2-1]", "line 1 of a hostfile: range 2-1 of nodes must run forwards"),
        ("n[1-99999999]", "line 1 of a hostfile: .* at most 8,192 names"),
        ("n1*0", "line 1 of a hostfile must be"),
        ("n1 slots=1\rn2 slots=1\r", "line 1 of a hostfile must be"),
        ("n1 slots=1\u2028n2 slots=1", "line 1 of a hostfile must be"),
        ("n1\u00a0slots=2", "line 1 of a hostfile must be"),
        ("/* all */\nn1", "line 1 of a hostfile must be"),
        ("n1\n^n1", "line 2 of a hostfile must be"),
        ("+n0", "line 1 of a hostfile must be"),
        ("rank 0=n1 slot=0", "line 1 of a hostfile must be"),
        ("n1- slots=2", "line 1 of a hostfile must be"),
        ("123 slots=2", "line 1 of a hostfile must be"),
        ("999.0.0.1 slots=2", "line 1 of a hostfile must be"),
        (f"{'x' * 64} slots=1", "line 1 of a hostfile must be"),
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


BLANKS = st.text(" \t\v\f", max_size=2)
KEYS = st.sampled_from(("slots", "cpu", "count", "max_slots", "slots-max", "max-cpu", "count_max"))
# All that Open MPI, or an editor, may make something else of.
JUNK = st.sampled_from(
    (*"0#=/*:,@^+-_.%;\"'\\[]{}()\r\x1c\x85\u00a0\u2028\ufeff", "//", "slots=1", "n1", "e", "A")
)


@st.composite
def openmpi_lines(draw: st.DrawFn) -> str:
    """Return a line of one of three hosts with slots, sometimes with something else in it."""
    words = [draw(st.sampled_from(("n1", "n2.lab", "10.0.0.7", "n1")))]
    for key in draw(st.lists(KEYS, min_size=1, max_size=2)):
        equals = f"{draw(BLANKS)}={draw(BLANKS)}"
        words.append(f"{key}{equals}{draw(st.sampled_from(('1', '2', '03', '0', '-1')))}")
    line = draw(BLANKS) + " ".join(words) + draw(st.sampled_from(("", " ", "# x", " // x")))
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(line)))
        line = line[:place] + draw(JUNK) + line[place:]
    return line


@pytest.mark.mpi
@given(lines=st.lists(openmpi_lines(), min_size=1, max_size=3))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_read_with_slots_is_what_open_mpi_reads(tmp_path: Path, lines: list[str]):
    """Apart from lines that end as on Windows, and hosts that it takes for one: it refuses both.

    A line without slots has as many as the host has cores.
    """
    text = "\n".join(lines) + "\n"
    try:
        expected = slots(text)
    except ValueError:
        return
    names = [host if is_address(host) else host.partition(".")[0] for host in expected]
    has_slots = all("=" in re.split("#|//", line)[0] or not line for line in text.split("\n"))
    if len(set(names)) < len(names) or "\r\n" in text or not has_slots:
        return
    (tmp_path / "hosts").write_text(text, newline="")
    assert allocated_by_open_mpi(tmp_path) == dict(zip(names, expected.values(), strict=True)), text


def allocated_by_open_mpi(folder: Path) -> dict[str, int]:
    """Return the slots that `mpirun` finds in the hostfile of a folder; it starts nothing."""
    program, *root = mpi_command(1)[: mpi_command(1).index("-n")]
    if "Open MPI" not in subprocess.check_output([program, "--version"], text=True):
        pytest.skip("this mpirun is not Open MPI's")
    done = subprocess.run(
        [
            program,
            *root,
            *[
                "--hostfile",
                "hosts",
                "--display",
                "allocation",
                "--do-not-launch",
                "-n",
                "1",
                "true",
            ],
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        env=mpi_environment(),
        timeout=60,
        check=False,
    )
    rows = re.findall(r"^    (\S+): slots=(\d+)", done.stdout, re.MULTILINE)
    return {host: int(count) for host, count in rows}


def test_hosts_that_open_mpi_takes_for_one_are_refused():
    named = Cluster(
        name="c",
        devices=tuple(
            Device(name=f"{host}:0", host=host, region="here") for host in ("a.x", "b", "a.y")
        ),
        latency_s=np.zeros((3, 3)),
        bandwidth_bytes_per_s=np.full((3, 3), np.inf),
    )
    with pytest.raises(ValueError, match=r"`hosts` must differ .* first dot.* a.y and a.x do not"):
        openmpi_hostfile(named)


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
