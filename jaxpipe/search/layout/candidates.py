"""Candidates of a search for a layout: groups of GPUs for the stages, with a lower bound each.

A candidate says how many stages there are, how many replicas, the microbatch, and on which kinds of
groups (a GPU type and a tensor degree) the stages are; not yet their order, the cut or the zones.
All replicas of a stage are on one kind, or in small clusters on two. With C the seconds of the
whole model on a stage's kind, and x the least messages of a stage, no order and no cut makes the
slowest stage faster than

    T = (1 + sum of x / C) / (sum of 1 / C)      over the stages

since stage s can hold at most the part (T - x) / C of the model. A step of M microbatches takes at
least (M - 1) T, the first microbatch on the fastest kind alone, and the all-reduce of the largest
stage, which has at least its share of the parameters. Where computes hide all-reduces, that of a
stage behind the slowest one may begin when this has up to S microbatches left of S stages, so that
only (M - S) T and the all-reduce add up. All candidates of a number of replicas are
bounded at once, by arrays: a million of them take about a second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np

from jaxpipe.search.layout.layout import Group, Run, Stage
from jaxpipe.search.layout.layout_task import LayoutTask

_SLACK = 0.97
"""Layers are not equally slow on all kinds, so that the bound is one up to some per cent."""
_MOST_MIXED_GPUS = 16
"""Clusters of more GPUs have too many stages on two kinds to try."""


class Candidate(NamedTuple):
    """The groups of the stages, in no order and all in one zone, and the least objective.

    `variety` is by how many more kinds of stages than GPU types there are.
    """

    bound: float
    variety: int
    microbatch: int
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Block:
    """The candidates of a microbatch and a number of replicas: `counts[n, k]` stages of kind k."""

    microbatch: int
    kinds: tuple[Stage, ...]
    counts: np.ndarray
    variety: np.ndarray
    bounds: np.ndarray

    def candidate(self, row: int) -> Candidate:
        stages = (
            kind
            for kind, count in zip(self.kinds, self.counts[row].tolist(), strict=True)
            for _ in range(count)
        )
        return Candidate(
            float(self.bounds[row]), int(self.variety[row]), self.microbatch, tuple(stages)
        )


def candidates(task: LayoutTask) -> dict[tuple[int, int], Iterator[Candidate]]:
    """Return the candidates that the GPUs suffice for, by variety and number of stages.

    Each iterator has the least bound first, and ends before infinite ones.
    """
    blocks = [
        block
        for microbatch in task.microbatches
        for num_replicas in replica_counts(task.batch, microbatch)
        if (block := _block(task, microbatch, num_replicas)) is not None
    ]
    if not blocks:
        return {}
    block_of = np.repeat(np.arange(len(blocks)), [len(block.bounds) for block in blocks])
    row_of = np.concatenate([np.arange(len(block.bounds)) for block in blocks])
    bounds = np.concatenate([block.bounds for block in blocks])
    variety = np.concatenate([block.variety for block in blocks])
    num_stages = np.concatenate([block.counts.sum(axis=1) for block in blocks])
    order = np.lexsort((bounds, num_stages, variety))
    order = order[np.isfinite(bounds[order])]
    keys = np.stack([variety[order], num_stages[order]], axis=1)
    # The first of each run of equal keys; there are none if no bound is finite.
    firsts = np.flatnonzero(np.any(np.diff(keys, axis=0, prepend=-1) != 0, axis=1))

    def following(positions: np.ndarray) -> Iterator[Candidate]:
        for position in positions.tolist():
            yield blocks[block_of[position]].candidate(int(row_of[position]))

    return {
        (int(keys[first, 0]), int(keys[first, 1])): following(positions)
        for first, positions in zip(firsts, np.split(order, firsts[1:]), strict=False)
    }


def replica_counts(batch: int, microbatch: int) -> list[int]:
    """Return the numbers of replicas: of those with equally many microbatches, the least.

    >>> replica_counts(12, 2)
    [1, 2, 3, 6]
    """
    samples = -(-batch // microbatch)
    return sorted({-(-samples // num) for num in range(1, samples + 1)})


def _block(task: LayoutTask, microbatch: int, num_replicas: int) -> _Block | None:
    if num_replicas > sum(task.gpus.values()):
        return None
    kinds = _kinds(task, microbatch, num_replicas)
    if not kinds:
        return None
    most = min(task.most_stages, task.num_layers, sum(task.gpus.values()) // num_replicas)
    counts = _multisets(len(kinds), most)
    # GPUs of each type that a stage of each kind takes.
    taken = np.array([[_gpus(kind, gpu) for gpu in task.types] for kind in kinds])
    used = counts @ taken
    enough = (used <= [task.count(gpu) for gpu in task.types]).all(axis=1)
    if not enough.any():
        return None
    counts, used = counts[enough], used[enough]
    least_s = _least_s(task, kinds, counts, (microbatch, num_replicas))
    return _Block(
        microbatch=microbatch,
        kinds=kinds,
        counts=counts,
        variety=np.maximum((counts > 0).sum(axis=1) - (used > 0).sum(axis=1), 0),
        bounds=task.bound(least_s, dict(zip(task.types, used.T, strict=True))),
    )


def _gpus(kind: Stage, gpu: str) -> int:
    return sum(group.tensor * count for group, count in kind if group.gpu == gpu)


def _kinds(task: LayoutTask, microbatch: int, num_replicas: int) -> tuple[Stage, ...]:
    """Return the stages of `num_replicas` replicas: on one kind of group, or on two."""
    groups = [
        Group(gpu, task.home(gpu), tensor)
        for gpu in task.types
        for tensor in task.costs.degrees(gpu, microbatch)
        if any(count >= tensor for (each, _), count in task.gpus.items() if each == gpu)
    ]
    kinds = [(Run(group, num_replicas),) for group in groups]
    if sum(task.gpus.values()) <= _MOST_MIXED_GPUS:
        kinds += [
            (Run(one, count), Run(other, num_replicas - count))
            for one, other in combinations(groups, 2)
            for count in range(1, num_replicas)
        ]
    return tuple(
        kind for kind in kinds if all(_gpus(kind, gpu) <= task.count(gpu) for gpu in task.types)
    )


@cache
def _multisets(num_kinds: int, most_stages: int) -> np.ndarray:
    return np.array(
        [
            np.bincount(each, minlength=num_kinds)
            for num in range(1, most_stages + 1)
            for each in combinations_with_replacement(range(num_kinds), num)
        ]
    )


def _least_s(
    task: LayoutTask, kinds: tuple[Stage, ...], counts: np.ndarray, sizes: tuple[int, int]
) -> np.ndarray:
    """Return the least seconds of a step for each row of counts; `sizes`: microbatch, replicas."""
    microbatch, num_replicas = sizes
    costs = task.costs
    groups = {group for kind in kinds for group, _ in kind}
    # The slowest group of a stage decides.
    whole_s = np.array(
        [max(costs.layer_sums(group, microbatch)[-1] for group, _ in kind) for kind in kinds]
    )
    num_stages = counts.sum(axis=1)
    hop_s = min(costs.hop_s(one, other, microbatch) for one in groups for other in groups)
    hops_s = np.where(num_stages > 1, hop_s, 0.0)
    rate = counts @ (1 / whole_s)
    slowest_s = (1 + hops_s * rate) / rate
    first_s = np.where(counts > 0, whole_s, np.inf).min(axis=1) + hops_s * num_stages
    num_microbatches = -(-task.batch // (microbatch * num_replicas))
    compute_s = (num_microbatches - 1) * slowest_s + np.maximum(slowest_s, first_s)
    reduce_s = np.array(
        [
            [
                min(costs.least_reduce_s(group, 1 / num, num_replicas) for group, _ in kind)
                for kind in kinds
            ]
            for num in range(1, int(num_stages.max()) + 1)
        ]
    )[num_stages - 1]
    least_reduce_s = np.where(counts > 0, reduce_s, np.inf).min(axis=1)
    added_s = compute_s + least_reduce_s
    if task.overlaps:
        early_s = (num_microbatches - num_stages) * slowest_s + least_reduce_s
        added_s = np.where(num_stages > 1, np.maximum(compute_s, early_s), added_s)
    return _SLACK * added_s
