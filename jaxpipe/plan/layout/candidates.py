"""Candidates of a search for a layout: kinds of groups for the stages, with a lower bound each.

A candidate says how many stages there are, how many replicas, the microbatch, and how many stages
each kind of group (a GPU type and a tensor degree) has; not yet their order, the cut or the zones.
With C the seconds of the whole model on one kind, and x the least messages of a stage, no order and
no cut makes the slowest stage faster than

    T = (1 + sum of x / C) / (sum of 1 / C)      over the stages

since stage s can hold at most the part (T - x) / C of the model. A step of M microbatches takes at
least (M - 1) T, the first microbatch on the fastest kind alone, and the all-reduce of the largest
stage, which has at least its share of the parameters. All candidates of a number of replicas are
bounded at once, by arrays: a million of them take about a second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from jaxpipe.plan.layout.layout import Group
from jaxpipe.plan.layout.layout_task import LayoutTask

_SLACK = 0.97
"""Layers are not equally slow on all kinds, so that the bound is one up to some per cent."""


class Candidate(NamedTuple):
    """The kinds of the stages, in no order, and the least objective.

    `variety` is by how many more kinds than GPU types there are.
    """

    bound: float
    variety: int
    microbatch: int
    num_replicas: int
    kinds: tuple[Group, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Block:
    """The candidates of a microbatch and a number of replicas: `counts[n, k]` stages of kind k."""

    microbatch: int
    num_replicas: int
    kinds: tuple[Group, ...]
    counts: np.ndarray
    variety: np.ndarray
    bounds: np.ndarray

    def candidate(self, row: int) -> Candidate:
        kinds = (
            kind
            for kind, count in zip(self.kinds, self.counts[row].tolist(), strict=True)
            for _ in range(count)
        )
        return Candidate(
            float(self.bounds[row]),
            int(self.variety[row]),
            self.microbatch,
            self.num_replicas,
            tuple(kinds),
        )


def candidates(task: LayoutTask) -> Iterator[Candidate]:
    """Yield the candidates that the GPUs suffice for: the least variety first, then by bound."""
    blocks = list(_blocks(task))
    if not blocks:
        return
    block_of = np.repeat(np.arange(len(blocks)), [len(block.bounds) for block in blocks])
    row_of = np.concatenate([np.arange(len(block.bounds)) for block in blocks])
    bounds = np.concatenate([block.bounds for block in blocks])
    variety = np.concatenate([block.variety for block in blocks])
    for position in np.lexsort((bounds, variety)).tolist():
        if np.isfinite(bounds[position]):
            yield blocks[block_of[position]].candidate(int(row_of[position]))


def replica_counts(batch: int, microbatch: int) -> list[int]:
    """Return the numbers of replicas: of those with equally many microbatches, the least.

    >>> replica_counts(12, 2)
    [1, 2, 3, 6]
    """
    samples = -(-batch // microbatch)
    return sorted({-(-samples // num) for num in range(1, samples + 1)})


def _blocks(task: LayoutTask) -> Iterator[_Block]:
    for microbatch in task.microbatches:
        kinds = _kinds(task, microbatch)
        if not kinds:
            continue
        counts = _multisets(len(kinds), min(task.most_stages, task.num_layers))
        of_type = np.array([[kind.gpu == gpu for kind in kinds] for gpu in task.types])
        variety = (counts > 0).sum(axis=1) - ((counts @ of_type.T) > 0).sum(axis=1)
        used = counts @ (of_type * [kind.tensor for kind in kinds]).T
        limits = np.array([task.count(gpu) for gpu in task.types])
        hop_s = _least_hop_s(task, kinds, microbatch)
        for num_replicas in replica_counts(task.batch, microbatch):
            enough = (num_replicas * used <= limits).all(axis=1)
            if not enough.any():
                break
            rows = counts[enough]
            least_s = _least_s(task, kinds, rows, (microbatch, num_replicas), hop_s)
            gpus = dict(zip(task.types, num_replicas * used[enough].T, strict=True))
            yield _Block(
                microbatch=microbatch,
                num_replicas=num_replicas,
                kinds=kinds,
                counts=rows,
                variety=variety[enough],
                bounds=task.bound(least_s, gpus),
            )


def _kinds(task: LayoutTask, microbatch: int) -> tuple[Group, ...]:
    return tuple(
        Group(gpu, task.home(gpu), tensor)
        for gpu in task.types
        for tensor in task.costs.degrees(gpu, microbatch)
        if any(count >= tensor for (each, _), count in task.gpus.items() if each == gpu)
    )


def _multisets(num_kinds: int, most_stages: int) -> np.ndarray:
    return np.array(
        [
            np.bincount(each, minlength=num_kinds)
            for num in range(1, most_stages + 1)
            for each in combinations_with_replacement(range(num_kinds), num)
        ]
    )


def _least_s(
    task: LayoutTask,
    kinds: tuple[Group, ...],
    counts: np.ndarray,
    sizes: tuple[int, int],
    hop_s: float,
) -> np.ndarray:
    """Return the least seconds of a step for each row of counts; `sizes`: microbatch, replicas."""
    microbatch, num_replicas = sizes
    whole_s = np.array([task.costs.layer_sums(kind, microbatch)[-1] for kind in kinds])
    num_stages = counts.sum(axis=1)
    hops_s = np.where(num_stages > 1, hop_s, 0.0)
    rate = counts @ (1 / whole_s)
    slowest_s = (1 + hops_s * rate) / rate
    first_s = np.where(counts > 0, whole_s, np.inf).min(axis=1) + hops_s * num_stages
    num_microbatches = -(-task.batch // (microbatch * num_replicas))
    compute_s = (num_microbatches - 1) * slowest_s + np.maximum(slowest_s, first_s)
    reduce_s = np.array(
        [
            [task.costs.least_reduce_s(kind, 1 / num, num_replicas) for kind in kinds]
            for num in range(1, task.most_stages + 1)
        ]
    )[num_stages - 1]
    return _SLACK * (compute_s + np.where(counts > 0, reduce_s, np.inf).min(axis=1))


def _least_hop_s(task: LayoutTask, kinds: tuple[Group, ...], microbatch: int) -> float:
    return min(task.costs.hop_s(one, other, microbatch) for one in kinds for other in kinds)
