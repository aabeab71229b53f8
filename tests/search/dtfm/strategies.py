"""Random networks for the properties of this folder, and the published ones in SI units."""

import numpy as np
from hypothesis import strategies as st

from jaxpipe.search.dtfm.weights import Weights

SEEDS = st.integers(0, 2**32 - 1)


def random_links(
    num_devices: int, *, seed: int, symmetric: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return latencies in seconds and bandwidths in bytes per second, some of them equal."""
    rng = np.random.default_rng(seed)
    shape = (num_devices, num_devices)
    latency_s = rng.integers(0, 100, shape) / 1e3
    bandwidth = rng.integers(1, 40, shape) * 0.05e9
    if symmetric:
        latency_s, bandwidth = (
            np.maximum(latency_s, latency_s.T),
            np.maximum(bandwidth, bandwidth.T),
        )
    return latency_s, bandwidth


def random_weights(num_devices: int, *, seed: int, symmetric: bool = True) -> Weights:
    """Return hops and syncs that have nothing to do with each other."""
    rng = np.random.default_rng(seed)
    hop, sync = (rng.integers(1, 30, (2, num_devices, num_devices)) / 8).astype(float)
    if symmetric:
        hop, sync = np.maximum(hop, hop.T), np.maximum(sync, sync.T)
    np.fill_diagonal(hop, 0.0)
    np.fill_diagonal(sync, 0.0)
    return Weights(hop=hop, sync=sync)
