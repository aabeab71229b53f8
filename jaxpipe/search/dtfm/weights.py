"""Weights of DT-FM's cost for each ordered pair of devices: a pipeline hop, and a sync."""

from dataclasses import dataclass

import numpy as np

from jaxpipe.errors import PlanError

GRADIENT_BYTES = 0.65e9
"""The gradients of one stage, as published: 0.65 GB."""
ACTIVATION_BYTES = 0.47124922275543213e9
"""The bytes that cross a stage boundary in one step, as published.

The published solver computes 2024 * 2048 * 2 * (1.25e5 / 2048) bytes in GiB (2024 for 2048) and
then takes the number for GB. Both slips are kept, so that costs compare with published ones.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """The two matrices that the cost is made of, in seconds, devices x devices.

    `hop[a, b]` moves a stage's activations from `a` to `b`; `sync[a, b]` is what `a` spends on `b`
    if both hold the same stage. The diagonals are 0.
    """

    hop: np.ndarray
    sync: np.ndarray

    @property
    def is_symmetric(self) -> bool:
        """Whether every hop takes as long as the way back."""
        return bool((self.hop == self.hop.T).all())


def link_weights(
    latency_s: np.ndarray,
    bandwidth_bytes_per_s: np.ndarray,
    *,
    group_size: int,
    gradient_bytes: float = GRADIENT_BYTES,
    activation_bytes: float = ACTIVATION_BYTES,
) -> Weights:
    """Return the weights of links; matrices are devices x devices, their diagonals are ignored.

    A hop is `latency + activation / bandwidth`. A sync is twice (scatter, then gather)
    `latency + (gradient / group_size) / bandwidth`: each member of a group owns a share of the
    gradients.

    >>> ms = np.array([[0.0, 0.011], [0.011, 0.0]])
    >>> weights = link_weights(ms, np.full((2, 2), 1e9), group_size=2)
    >>> round(float(weights.hop[0, 1]), 6), round(float(weights.sync[0, 1]), 6)
    (0.482249, 0.672)

    Raises:
        PlanError: the matrices are not square and alike, a latency is negative or not finite, or a
            bandwidth is not above zero.

    Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous
    Environments", NeurIPS 2022, section 3.1, with the constants of its public code.
    """
    _check(latency_s, bandwidth_bytes_per_s)
    hop = latency_s + activation_bytes / bandwidth_bytes_per_s
    sync = 2 * (latency_s + gradient_bytes / group_size / bandwidth_bytes_per_s)
    # A device to itself: the diagonals of the arguments are ignored.
    np.fill_diagonal(hop, 0.0)
    np.fill_diagonal(sync, 0.0)
    return Weights(hop=hop, sync=sync)


def _check(latency_s: np.ndarray, bandwidth_bytes_per_s: np.ndarray) -> None:
    shape = latency_s.shape
    if len(shape) != 2 or shape[0] != shape[1] or bandwidth_bytes_per_s.shape != shape:
        raise PlanError(
            "links are two matrices, devices x devices: `latency_s` is "
            f"{shape}, `bandwidth_bytes_per_s` {bandwidth_bytes_per_s.shape}; "
            "make them square and alike"
        )
    between = ~np.eye(len(latency_s), dtype=bool)
    latencies, bandwidths = latency_s[between], bandwidth_bytes_per_s[between]
    if not (np.isfinite(latencies) & (latencies >= 0)).all():
        raise PlanError(
            f"a latency is finite and not negative: `latency_s` holds {latencies.min()} to "
            f"{latencies.max()}; give seconds"
        )
    if not (bandwidths > 0).all():
        raise PlanError(
            f"a bandwidth is above zero: `bandwidth_bytes_per_s` holds {bandwidths.min()}; "
            "leave out devices that cannot be reached"
        )
