"""Steps of ZeRO-3, held against closed forms on equal links."""

import pytest

from jaxpipe import topo
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.baselines.published.zero3 import zero3_step
from jaxpipe.simulate import dtfm_constants, simulate, step_seconds

_SIZE = 8
_MATRICES = 4
_STAY = 1e9 / (12 * 2048**2)
"""Layers that stay gathered."""


def _step_s(*, layers: int, batch: int, delay_ms: float, gbps: float = 8e6) -> float:
    cluster = topo.load(f"homogeneous:hosts={_SIZE},delay_ms={delay_ms},bandwidth_gbps={gbps}")
    workload = Workload(num_layers=layers, batch=batch)
    step = zero3_step(cluster, tuple(range(_SIZE)), workload=workload, constants=dtfm_constants())
    return step_seconds(simulate(step))


def _latency_s(**size: int) -> float:
    """Return what 1 s of latency adds to a step over links that take no time otherwise."""
    return _step_s(**size, delay_ms=1000) - _step_s(**size, delay_ms=0)


def _rings(layers: int) -> float:
    """Return the rings of a pass: matrices, twice, and buckets of gradients."""
    gradients = Workload(num_layers=layers, batch=1).gradient_bytes(layers, is_first=True) / 2
    return 2 * _MATRICES * max(0.0, layers - _STAY) + max(1.0, gradients / 5e8)


@pytest.mark.parametrize("layers", [1, 19, 24, 40])
def test_every_ring_of_a_pass_takes_the_latency_of_its_rounds(layers: int):
    seconds = _latency_s(layers=layers, batch=4 * _SIZE)
    assert seconds == pytest.approx((_SIZE - 1) * _rings(layers), rel=1e-6)


def test_each_pass_of_four_samples_costs_the_same():
    one, three = (_latency_s(layers=24, batch=n * 4 * _SIZE) for n in (1, 3))
    assert three == pytest.approx(3 * one)


def test_gradients_move_twice_the_bytes_of_parameters():
    gbps = 8e-3  # slow enough that the seconds of bytes dwarf everything else
    seconds = _step_s(layers=10, batch=4 * _SIZE, delay_ms=0, gbps=gbps)
    all_bytes = Workload(num_layers=10, batch=1).gradient_bytes(10, is_first=True)
    per_ring = (_SIZE - 1) / _SIZE / (gbps * 1e9 / 8)
    fast = _step_s(layers=10, batch=4 * _SIZE, delay_ms=0)
    # Ten layers stay: their parameters move only for the reduction.
    assert seconds - fast == pytest.approx(per_ring * 2 * all_bytes, rel=1e-3)
