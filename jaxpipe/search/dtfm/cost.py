"""DT-FM's cost of a grouping, which its scheduler minimises in place of the step time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.search.dtfm.matching import bottleneck_matching, bottleneck_values
from jaxpipe.search.dtfm.path import cheapest_path
from jaxpipe.search.dtfm.weights import ACTIVATION_BYTES, GRADIENT_BYTES, Weights, link_weights

Groups: TypeAlias = Sequence[Sequence[int]] | np.ndarray
"""Devices by group, groups of equal size: one group per stage, one device per replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DtfmCost:
    """The cost in seconds: `total = data_parallel + 2 * pipeline`.

    `order[s]` is the group that holds stage `s`; `matching[s]` says which device of stage `s`
    sends to which device of stage `s + 1`, in pairs.
    """

    data_parallel: float
    pipeline: float
    total: float
    order: tuple[int, ...]
    matching: tuple[tuple[tuple[int, int], ...], ...]


def dtfm_cost(
    latency_s: np.ndarray,
    bandwidth_bytes_per_s: np.ndarray,
    groups: Groups,
    *,
    gradient_bytes: float = GRADIENT_BYTES,
    activation_bytes: float = ACTIVATION_BYTES,
) -> DtfmCost:
    """Return the cost of groups of devices, with the order and the matching that achieve it.

    ::

        w(a, b)     = latency[a, b] + activation / bandwidth[a, b]
        DP          = max over groups g, max over members i of g, of the sum over the others j
                      of 2 (latency[i, j] + gradient / size of g / bandwidth[i, j])
        cross(g, h) = the smallest possible maximum of w over perfect matchings of g with h
        PP          = the cheapest open path through the groups by cross
        total       = DP + 2 PP

    The order is exact for up to 16 groups, beyond it is that of `cheapest_path`; the rest is exact
    always. The published cost knows symmetric links only; on asymmetric ones each weight is that
    of the direction that the formulas write: from a member to another, from a stage to the next.

    >>> link = np.array([[0.0, 0.005], [0.005, 0.0]])
    >>> cost = dtfm_cost(link, np.full((2, 2), 0.25e9), [[0], [1]])
    >>> cost.data_parallel, round(cost.pipeline, 4), cost.order, cost.matching
    (0.0, 1.89, (0, 1), (((0, 1),),))

    Raises:
        PlanError: the links are not valid (see `link_weights`), or the groups are empty, of unequal
            size, or name a device twice or one that does not exist.

    Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous
    Environments", NeurIPS 2022, section 3, with the constants of its public code.
    """
    members = check_groups(groups, num_devices=len(latency_s))
    weights = link_weights(
        latency_s,
        bandwidth_bytes_per_s,
        group_size=members.shape[1],
        gradient_bytes=gradient_bytes,
        activation_bytes=activation_bytes,
    )
    order = cheapest_path(cross_hops(weights.hop, members, symmetric=weights.is_symmetric))
    stages = members[order]
    matchings = [bottleneck_matching(weights.hop[np.ix_(a, b)]) for a, b in pairwise(stages)]
    data_parallel = float(sync_seconds(weights, members).max())
    pipeline = sum(matching.value for matching in matchings)
    return DtfmCost(
        data_parallel=data_parallel,
        pipeline=pipeline,
        total=data_parallel + 2 * pipeline,
        order=tuple(order.tolist()),
        matching=tuple(
            tuple(zip(a.tolist(), b[list(matching.columns)].tolist(), strict=True))
            for (a, b), matching in zip(pairwise(stages), matchings, strict=True)
        ),
    )


def check_groups(groups: Groups, *, num_devices: int) -> np.ndarray:
    """Return the groups as a matrix, groups x members.

    Raises:
        PlanError: they are empty, of unequal size, or name a device twice or one that does not
            exist.
    """
    sizes = sorted({len(group) for group in groups})
    if len(sizes) != 1 or sizes[0] < 1:
        raise PlanError(
            f"all groups hold as many devices: the sizes of `groups` are {sizes}; "
            "give at least one group, and at least one device to each"
        )
    members = np.array([list(group) for group in groups], dtype=int)
    devices, counts = np.unique(members, return_counts=True)
    if counts.max() > 1:
        raise PlanError(
            f"a device is in one group: `groups` name device {devices[counts.argmax()]} twice; "
            "leave out the one or the other"
        )
    if devices[0] < 0 or devices[-1] >= num_devices:
        wrong = devices[0] if devices[0] < 0 else devices[-1]
        raise PlanError(
            f"a group holds devices of the cluster: `groups` name device {wrong}, there are "
            f"{num_devices}; count them from 0"
        )
    return members


def sync_seconds(weights: Weights, members: np.ndarray) -> np.ndarray:
    """Return the sync seconds of each member in its group; shapes are groups x members."""
    return weights.sync[members[:, :, None], members[:, None, :]].sum(axis=2)  # the diagonal is 0


def cross_hops(hop: np.ndarray, members: np.ndarray, *, symmetric: bool) -> np.ndarray:
    """Return the bottleneck of the best matching from each group to each other, groups x groups.

    `hop` is devices x devices, of any ordered type; groups of a symmetric one are matched one way.
    """
    apart = ~np.eye(len(members), dtype=bool)
    sources, destinations = np.nonzero(np.triu(apart) if symmetric else apart)
    pairs = hop[members[sources][:, :, None], members[destinations][:, None, :]]
    # In the dtype of `hop`: searches pass small integer ranks in place of seconds.
    hops = np.zeros(apart.shape, dtype=hop.dtype)
    hops[sources, destinations] = bottleneck_values(pairs)
    return hops + hops.T if symmetric else hops


def reach_hops(hop: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return a bound below `cross_hops`: each device has to be joined to some other.

    Cost: O(n ** 2) for n devices, as many operations as `hop` has entries.
    """
    shape = (*members.shape, *members.shape)
    between = hop[np.ix_(members.ravel(), members.ravel())].reshape(shape)
    return np.maximum(between.min(axis=3).max(axis=1), between.min(axis=1).max(axis=2))
