"""A probe over emulated links finds what two regions share."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.topo.emulate import EngineKind
from jaxpipe.topo.write import cluster_toml
from tests.topo.emulate.machine import needs_namespaces


@pytest.mark.root
@pytest.mark.mpi
def test_a_probe_finds_the_trunks_between_two_regions(tmp_path: Path):
    needs_namespaces(EngineKind.RELAY)
    ways = (("ohio", "virginia"), ("virginia", "ohio"))
    # So slow that the cores of this machine have no part in it.
    trunks = tuple(topo.Trunk(source=a, destination=b, bytes_per_s=4e6) for a, b in ways)
    hidden, out = tmp_path / "hidden.toml", tmp_path / "found.toml"
    hidden.write_text(cluster_toml(replace(topo.load("two-region"), trunks=trunks)))
    ranks = launch_command(find_mpirun(), num_ranks=4)
    python = (sys.executable, "-P", "-m", "jaxpipe")
    probe = ("topo", "probe", "-o", str(out), "--large-mib", "1", "--repeats", "2")
    emulate = ("emulate", str(hidden), "--engine", "relay", "--")
    command = (*python, *emulate, *ranks, *python, *probe)
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    found = topo.load(str(out))
    assert len(found.regions) == 2
    assert {(trunk.source, trunk.destination) for trunk in found.trunks} == {
        found.regions,
        found.regions[::-1],
    }
    # All pairs together have what one of them has alone.
    for trunk in found.trunks:
        assert trunk.bytes_per_s < 1.25 * 4e6
