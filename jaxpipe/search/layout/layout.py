"""A layout: which groups of GPUs hold which stage of which replica, in a mixed cluster.

A `Plan` names the devices of each rank. A layout has a group of GPUs to a rank, all of one type on
one node, and says only their type, their zone and how many they are::

    stage 0   4 layers     16 x V100-16:4@a                    16 replicas, tensor degree 4
    stage 1   22 layers     6 x A100-40:1@a + 10 x A100-40:1@b 16 replicas, in two zones

Replica j of a stage sends to replica j of the next one, and replicas all-reduce gradients with
their neighbours, so the order of the groups of a stage matters. Equal neighbours are one run: what
depends on kinds of groups alone costs the same for 6 replicas and for 600.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from jaxpipe.errors import PlanError
from jaxpipe.plan.partition import Cut


class Group(NamedTuple):
    """The GPUs of one rank: `tensor` of them, on one node, which share each layer."""

    gpu: str
    zone: str
    tensor: int

    def __str__(self) -> str:
        return f"{self.gpu}:{self.tensor}@{self.zone}"


class Run(NamedTuple):
    """Consecutive replicas of a stage on equal groups."""

    group: Group
    replicas: int


Stage: TypeAlias = tuple[Run, ...]
"""The groups of a stage, in the order of its replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Stages on groups of GPUs: `cut[s]` layers of the model on the groups of `stages[s]`.

    Stages may have unequal numbers of replicas, as in the plans of Piper and Metis; the first
    stage's counts for the batch.

    Raises:
        PlanError: a stage has no replica, or the stages are not those of the cut.
    """

    cut: Cut
    stages: tuple[Stage, ...]
    microbatch: int

    def __post_init__(self) -> None:
        replicas = [sum(run.replicas for run in stage) for stage in self.stages]
        if not self.cut or len(self.cut) != len(self.stages) or min(replicas) < 1:
            raise PlanError(
                f"each stage of a layout has layers and replicas: `cut` is {self.cut}, the stages "
                f"of `stages` have {replicas} replicas; give each stage both"
            )

    @property
    def num_stages(self) -> int:
        """The number of stages of a replica."""
        return len(self.cut)

    @property
    def num_replicas(self) -> int:
        """The number of replicas of the first stage."""
        return sum(run.replicas for run in self.stages[0])

    def num_microbatches(self, batch: int) -> int:
        """Return the microbatches of a step; the last may have fewer samples.

        >>> group = Group("A100-40", "a", 4)
        >>> layout = Layout(cut=(26,), stages=((Run(group, 20),),), microbatch=4)
        >>> layout.num_microbatches(1024)
        13
        """
        return -(-batch // (self.microbatch * self.num_replicas))

    def gpus(self) -> Counter[tuple[str, str]]:
        """Return how many GPUs the layout uses, by type and zone."""
        used: Counter[tuple[str, str]] = Counter()
        for stage in self.stages:
            for group, count in stage:
                used[group.gpu, group.zone] += count * group.tensor
        return used

    def __str__(self) -> str:
        stages = (
            f"{layers}L " + "+".join(f"{count}x{group}" for group, count in stage)
            for layers, stage in zip(self.cut, self.stages, strict=True)
        )
        return f"microbatch {self.microbatch}: " + " | ".join(stages)


def neighbours(stage: Stage) -> Iterator[tuple[Group, Group]]:
    """Return the different pairs of groups of consecutive replicas of a stage.

    >>> a, b = Group("V100-16", "a", 1), Group("V100-16", "b", 1)
    >>> [f"{one.zone}{other.zone}" for one, other in neighbours((Run(a, 2), Run(b, 1)))]
    ['aa', 'ab']
    """
    for position, (group, count) in enumerate(stage):
        if count > 1:
            yield group, group
        if position + 1 < len(stage):
            yield group, stage[position + 1].group


def facing(stage: Stage, other: Stage) -> Iterator[tuple[Group, Group, int]]:
    """Return the pairs of groups of the same replicas in two stages, and how many replicas.

    Of a stage with more replicas than the other the last have no partner.

    >>> a, b = Group("V100-16", "a", 1), Group("V100-16", "b", 1)
    >>> pairs = facing((Run(a, 3),), (Run(a, 1), Run(b, 2)))
    >>> [(one.zone, other.zone, count) for one, other, count in pairs]
    [('a', 'a', 1), ('a', 'b', 2)]
    """
    rest = iter(other)
    second, left = next(rest)
    for group, count in stage:
        todo = count
        while todo:
            if not left:
                following = next(rest, None)
                if following is None:
                    return
                second, left = following
            both = min(todo, left)
            yield group, second, both
            todo -= both
            left -= both
