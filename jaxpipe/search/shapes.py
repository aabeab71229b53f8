"""Shapes: the numbers of ranks of a pipeline and of its replicas that fit a task."""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.search.task import Task

_FEW_DEVICES = 16
"""On so many devices all numbers of replicas are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The number of stages of a pipeline, a rank each, and of its replicas."""

    stages: int
    replicas: int

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.stages * self.replicas

    def __str__(self) -> str:
        """Return the shape as a plan names its own.

        >>> str(Shape(stages=2, replicas=1))
        '2 stages x 1 replica'
        """
        stages = "stage" if self.stages == 1 else "stages"
        return f"{self.stages} {stages} x {self.replicas} replica{'s' * (self.replicas != 1)}"


def shape_name(plan: Plan) -> str:
    """Return the shape of a plan in words; several chunks of a rank count as one stage."""
    if plan.num_chunks == 1:
        return plan.shape
    ranks = {pipeline.num_ranks for pipeline in plan.pipelines}
    return str(Shape(stages=max(ranks), replicas=plan.num_replicas)) if len(ranks) == 1 else ""


def has_one_order(plan: Plan) -> bool:
    """Return whether each pipeline is one rank, which computes in the same order by any schedule.

    Chunks change what goes beside it: the all-reduce of a chunk starts when its gradients are
    complete, before those of the layers in front of it are computed.
    """
    return max(pipeline.num_ranks for pipeline in plan.pipelines) == 1


def shapes(task: Task) -> tuple[Shape, ...]:
    """Return the shapes that fit the devices, the layers and the batch, largest first.

    On few devices these are all. On many, they are for each number of stages the most replicas that
    divide the batch, at most half as many, and one, in case it is better to leave devices unused.

    Raises:
        PlanError: no shape fits, or none that keeps what is fixed.
    """
    found = set(_fitting(task))
    if not found:
        fixed = task.fixed
        given = {
            "plan.stages": fixed.num_stages,
            "plan.replicas": fixed.replicas,
            "plan.chunks": fixed.chunks,
            "train.batch": task.batch,
        }
        values = ", ".join(f"`{name}` {value}" for name, value in given.items() if value)
        raise PlanError(
            f"{values} must fit {len(task.devices)} devices and {task.num_layers} layers"
            + (f" with {fixed.num_ranks} ranks" if fixed.num_ranks else "")
            + ": use fewer stages, and replicas that divide the batch"
        )
    return tuple(sorted(found, key=lambda shape: (-shape.num_ranks, shape.stages)))


def _fitting(task: Task) -> Iterator[Shape]:
    fixed, num_devices = task.fixed, len(task.devices)
    most = min(task.num_layers // fixed.num_chunks, num_devices // (fixed.replicas or 1))
    depths = range(1, most + 1) if fixed.depth is None else (fixed.depth,)
    for stages in depths:
        for replicas in _replicas(task, stages=stages) if stages <= most else ():
            shape = Shape(stages=stages, replicas=replicas)
            if fixed.num_ranks in (None, shape.num_ranks):
                yield shape


def _replicas(task: Task, *, stages: int) -> tuple[int, ...]:
    fixed, most = task.fixed, len(task.devices) // stages
    fitting = [replicas for replicas in range(1, most + 1) if task.batch % replicas == 0]
    if fixed.replicas is not None:
        return (fixed.replicas,) if fixed.replicas in fitting else ()
    if task.any_size or most <= _FEW_DEVICES or fixed.num_ranks is not None:
        return tuple(fitting)
    half = [replicas for replicas in fitting if 2 * replicas <= fitting[-1]]
    # Also one replica: a small model has nothing to gain from gradients over slow links.
    return tuple({*fitting[-1:], *half[-1:], 1})
