"""The task of a search for a layout: GPUs, layers, costs of layers on groups, and an objective."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.search.layout.layout import Group, Layout

Place: TypeAlias = tuple[str, str]
"""A GPU type and a zone."""

Objective: TypeAlias = Callable[[Layout], float]
"""What a layout costs: seconds, dollars; infinite if it breaks a limit."""

Bound: TypeAlias = Callable[[np.ndarray, Mapping[str, np.ndarray]], np.ndarray]
"""The least objective of layouts that take at least these seconds, on these GPUs by type."""


def bound_by_seconds(seconds: np.ndarray, _gpus: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the seconds: the bound of an objective that is the seconds of a step."""
    return seconds


class StageCosts(Protocol):
    """The costs of consecutive layers on a group, for one model."""

    def degrees(self, gpu: str, microbatch: int) -> Sequence[int]:
        """Return the tensor degrees that are known for a GPU type and microbatch."""
        ...

    def layer_sums(self, group: Group, microbatch: int) -> Sequence[float]:
        """Return the seconds of forward and backward of the first 0, 1, 2... layers."""
        ...

    def fits_gpus(
        self, group: Group, layers: tuple[int, int], num_live: int, microbatch: int
    ) -> bool:
        """Return whether layers with `num_live` microbatches in flight fit the GPUs of a group."""
        ...

    def hop_s(self, one: Group, other: Group, microbatch: int) -> float:
        """Return the seconds of a microbatch's activations from a group to another."""
        ...

    def least_reduce_s(self, kind: Group, part: float, num_replicas: int) -> float:
        """Return the least seconds of the all-reduce of a part of the model's parameters."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTask:
    """GPUs by type and zone, and what to place on them.

    With `overlaps` the objective hides the all-reduce of a stage behind the computes of others.

    Raises:
        PlanError: a number is out of its range.
    """

    gpus: Mapping[Place, int]
    num_layers: int
    batch: int
    microbatches: tuple[int, ...]
    costs: StageCosts
    objective: Objective
    bound: Bound = bound_by_seconds
    most_stages: int = 8
    overlaps: bool = False

    def __post_init__(self) -> None:
        if not self.gpus or min(self.gpus.values()) < 1:
            raise PlanError(f"`gpus` must have at least one GPU in each place, not {self.gpus}")
        for name in ("num_layers", "batch", "most_stages"):
            if getattr(self, name) < 1:
                raise PlanError(f"`{name}` must be at least 1, not {getattr(self, name)}")
        if not self.microbatches or min(self.microbatches) < 1:
            raise PlanError(f"`microbatches` must be sizes above 0, not {self.microbatches}")

    @property
    def types(self) -> tuple[str, ...]:
        """The GPU types, each once."""
        return tuple(dict.fromkeys(gpu for gpu, _ in self.gpus))

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones, each once."""
        return tuple(dict.fromkeys(zone for _, zone in self.gpus))

    def count(self, gpu: str) -> int:
        """Return the GPUs of a type in all zones."""
        return sum(count for (each, _), count in self.gpus.items() if each == gpu)

    def home(self, gpu: str) -> str:
        """Return the first zone that has a type."""
        return next(zone for each, zone in self.gpus if each == gpu)
