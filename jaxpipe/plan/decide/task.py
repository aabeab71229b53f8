"""What is decided about: a cluster, a model's costs, a batch; and the shapes that fit them."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.plan.cost.estimate import slowness
from jaxpipe.plan.cost.memory import BytesPerParameter
from jaxpipe.plan.cost.profile import Profile
from topo import Cluster
from topo.gpu import Precision


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A model to train on a cluster, `batch` samples a step.

    `tied` says whether the head shares the embedding's parameters.

    Raises:
        PlanError: there is no sample.
    """

    cluster: Cluster
    profile: Profile
    batch: int
    tied: bool = False
    precision: Precision = Precision.FP16
    bytes_each: BytesPerParameter = field(default_factory=BytesPerParameter)

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise PlanError(f"a step has samples: `batch` is {self.batch}; make it at least 1")

    @property
    def num_layers(self) -> int:
        """How many layers are cut into stages."""
        return len(self.profile.layers)

    @cached_property
    def slow(self) -> np.ndarray:
        """How many times longer than the profiled device each device of the cluster takes."""
        return slowness(self.cluster, self.profile, self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many stages a pipeline has, and how many replicas there are of it."""

    stages: int
    replicas: int

    @property
    def num_ranks(self) -> int:
        """How many devices it takes."""
        return self.stages * self.replicas


def shapes(task: Task) -> tuple[Shape, ...]:
    """Return the shapes that fit the devices, the layers and the batch, largest first.

    For each number of stages these are the most replicas that divide the batch, and at most half
    as many, in case devices are better left out.
    """
    found = {
        Shape(stages=stages, replicas=replicas)
        for stages in range(1, min(task.num_layers, len(task.cluster)) + 1)
        for replicas in _replicas(task, stages=stages)
    }
    return tuple(sorted(found, key=lambda shape: (-shape.num_ranks, shape.stages)))


def _replicas(task: Task, *, stages: int) -> tuple[int, ...]:
    most = len(task.cluster) // stages
    fitting = [replicas for replicas in range(1, most + 1) if task.batch % replicas == 0]
    half = [replicas for replicas in fitting if 2 * replicas <= fitting[-1]]
    return (fitting[-1], *half[-1:])
