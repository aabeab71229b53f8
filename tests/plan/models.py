"""Small models and clusters of unlike devices for the tests of this folder."""

import numpy as np

from jaxpipe.plan.cost import Profile, flop_profile
from jaxpipe.topo import Cluster, Device


def profile_of(
    num_layers: int, *, layer_parameters: int = 100, activation_bytes: int = 1000
) -> Profile:
    """Return layers that take a second each on the profiled device, of 1 TFLOP/s."""
    return flop_profile(
        num_layers=num_layers,
        layer_flop=1e12 / 3,
        layer_parameters=layer_parameters,
        layer_kept_bytes=10,
        activation_bytes=activation_bytes,
        flops_per_s=1e12,
    )


def cluster_of(*tflops: float, seed: int = 0, symmetric: bool = True) -> Cluster:
    """Return devices of these speeds, each on its host in one region, with random links."""
    count = len(tflops)
    random = np.random.default_rng(seed)
    latency_s = random.uniform(0, 0.1, (count, count))
    bandwidth = random.uniform(1e4, 1e6, (count, count))
    if symmetric:
        latency_s, bandwidth = latency_s + latency_s.T, bandwidth + bandwidth.T
    np.fill_diagonal(latency_s, 0.0)
    np.fill_diagonal(bandwidth, np.inf)
    devices = tuple(
        Device(name=f"d{i}", host=f"h{i}", region="r", effective_flops_per_s=speed * 1e12)
        for i, speed in enumerate(tflops)
    )
    return Cluster(
        name="random", devices=devices, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth
    )
