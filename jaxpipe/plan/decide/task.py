"""The planner's task: a cluster, a model's profile and a batch; and the shapes that fit."""

from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.plan.cost.estimate import slowness
from jaxpipe.plan.cost.layer_profile import Profile
from jaxpipe.plan.cost.memory import BytesPerParameter
from jaxpipe.topo import Cluster
from jaxpipe.topo.gpu import Precision


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: `cached_property` needs a `__dict__`
class Task:
    """A model to train on a cluster, `batch` samples a step.

    `tied` says whether the head shares the embedding's parameters. Gradients are sent in chunks of
    `chunk_bytes`. `stages` and `replicas` are chosen by the planner by default. With `any_size`
    plans that leave out most devices are tried as well: where these cost money.

    Raises:
        PlanError: there is no sample, no stage or no replica.
    """

    cluster: Cluster
    profile: Profile
    batch: int
    tied: bool = False
    precision: Precision = Precision.FP16
    bytes_each: BytesPerParameter = field(default_factory=BytesPerParameter)
    chunk_bytes: float = inf
    stages: int | None = None
    replicas: int | None = None
    any_size: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise PlanError(f"`batch` must be at least 1, not {self.batch}")
        for name in ("stages", "replicas"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PlanError(f"`{name}` must be at least 1, not {value}")

    @property
    def num_layers(self) -> int:
        """The number of layers to partition."""
        return len(self.profile.layers)

    @cached_property
    def slow(self) -> np.ndarray:
        """The compute time of each device relative to the profiled device."""
        return slowness(self.cluster, self.profile, self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The number of stages of a pipeline, and of its replicas."""

    stages: int
    replicas: int

    @property
    def num_ranks(self) -> int:
        """The number of devices."""
        return self.stages * self.replicas


def shapes(task: Task) -> tuple[Shape, ...]:
    """Return the shapes that fit the devices, the layers and the batch, largest first.

    For each number of stages these are the most replicas that divide the batch, at most half as
    many, and one, in case it is better to leave devices unused.

    Raises:
        PlanError: the task's own stages and replicas do not fit.
    """
    most = min(task.num_layers, len(task.cluster) // (task.replicas or 1))
    allowed = range(1, most + 1) if task.stages is None else (task.stages,)
    found = {
        Shape(stages=stages, replicas=replicas)
        for stages in allowed
        for replicas in _replicas(task, stages=stages)
        if stages <= most
    }
    if not found:
        raise PlanError(
            f"stages and replicas fit devices, layers and batch: `stages` is {task.stages} and "
            f"`replicas` {task.replicas} for {len(task.cluster)} devices, {task.num_layers} layers "
            f"and `batch` {task.batch}; use fewer, and replicas that divide the batch"
        )
    return tuple(sorted(found, key=lambda shape: (-shape.num_ranks, shape.stages)))


def _replicas(task: Task, *, stages: int) -> tuple[int, ...]:
    if task.replicas is not None:
        return (task.replicas,) if task.batch % task.replicas == 0 else ()
    most = len(task.cluster) // stages
    fitting = [replicas for replicas in range(1, most + 1) if task.batch % replicas == 0]
    if task.any_size:
        return tuple(fitting)
    half = [replicas for replicas in fitting if 2 * replicas <= fitting[-1]]
    # Also one replica: a small model has nothing to gain from gradients over slow links.
    return tuple({*fitting[-1:], *half[-1:], 1})
