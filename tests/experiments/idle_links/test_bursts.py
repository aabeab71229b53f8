"""A message over a long link takes one latency: no rendezvous, no slow start after a silence."""

import json
import subprocess
from pathlib import Path
from statistics import median

import pytest

from jaxpipe import topo
from jaxpipe.topo.emulate import EngineKind, Tcp, emulated
from tests.helpers import mpi_command, mpi_environment
from tests.topo.emulate.machine import needs_namespaces

_LATENCY_S = 0.1
_LINKS = "homogeneous:hosts=2,delay_ms=100,bandwidth_gbps=1"
_PROGRAM = ("-m", "experiments.idle_links.bursts")
_REPOSITORY = Path(__file__).parents[3]


@pytest.mark.root
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("tcp", [Tcp.STEADY, Tcp.KERNEL])
def test_after_a_silence_a_message_takes_a_latency_and_its_bytes(tcp: Tcp):
    needs_namespaces(EngineKind.RELAY)
    num_bytes, num_messages = 1_000_000, 4
    numbers = ("1.5", str(num_bytes), str(num_messages), "4")
    with emulated(topo.load(_LINKS), kind=EngineKind.RELAY, tcp=tcp) as emulation:
        printed = subprocess.check_output(
            mpi_command(2, *_PROGRAM, "warm", *numbers),
            cwd=_REPOSITORY,
            env={**mpi_environment(), **emulation.settings, "JAX_PLATFORMS": "cpu"},
            text=True,
            timeout=120,
        )
    bursts = json.loads(next(line for line in printed.splitlines() if line.startswith("[[")))
    after_silences_s = [burst[0] for burst in bursts[1:]]
    # 1 MB takes 8 ms on the link; a rendezvous or a slow start would add at least 0.2 s.
    assert median(after_silences_s) < _LATENCY_S + 0.1, bursts
    assert min(after_silences_s) > _LATENCY_S, bursts
