"""Baselines of the search: filling region by region, and random placements."""

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

from experiments.planner.clusters import Links
from jaxpipe.search.dtfm import Weights, dtfm_cost


def by_region(links: Links, regions: np.ndarray, *, stages: int, replicas: int) -> float:
    """Return the cost of filling stages, or replicas, region by region; the lower of the two.

    The first keeps gradient sync inside regions, the second pipelines.
    """
    order = np.argsort(regions, kind="stable")[: stages * replicas]
    groups = (order.reshape(stages, replicas), order.reshape(replicas, stages).T)
    return min(
        dtfm_cost(links.latency_s, links.bandwidth_bytes_per_s, each).total for each in groups
    )


def best_random_at_least(
    weights: Weights, *, stages: int, replicas: int, count: int, random: np.random.Generator
) -> float:
    """Return a lower bound of the costs of `count` random placements.

    The nearest partner of each device bounds matchings, and the minimum spanning tree bounds the
    path. A bound of a large placement takes a second, its exact cost minutes.
    """
    return min(
        _at_least(weights, random.permutation(len(weights.hop))[: stages * replicas], stages)
        for _ in range(count)
    )


def _at_least(weights: Weights, devices: np.ndarray, stages: int) -> float:
    groups = devices.reshape(stages, -1)
    sync = weights.sync[groups[:, :, None], groups[:, None, :]].sum(axis=2).max()
    hop = weights.hop[np.ix_(devices, devices)].reshape(*groups.shape, *groups.shape)
    reach = np.maximum(hop.min(axis=3).max(axis=1), hop.min(axis=1).max(axis=2))
    return float(sync + 2 * minimum_spanning_tree(np.minimum(reach, reach.T)).sum())
