"""The task of a search: a cluster, a model's profile, a batch, and what is already decided."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import inf

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.plan import Cut, check_partition
from jaxpipe.plan.cost import BytesPerParameter, Profile, slowness
from jaxpipe.search.balance import balanced_cut
from jaxpipe.search.fixed import Fixed
from jaxpipe.topo import Cluster
from jaxpipe.topo.gpu import Precision


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: `cached_property` needs a `__dict__`
class Task:
    """A model to train on a cluster, `batch` samples a step.

    `tied` says whether the head shares the embedding's parameters. Gradients are sent in chunks of
    `chunk_bytes`. Ranks have up to `max_tensor` devices of a host, which share the stage's
    `num_heads`; `recomputes` says whether a backward of the profile computes its forward again.
    With `any_size` plans that leave out most devices are tried as well: where these cost money.
    `fixed` is kept, everything else of a plan is free.

    Raises:
        PlanError: there is no sample, no head or no device for a rank, or a cut that is fixed does
            not cover the layers.
    """

    cluster: Cluster
    profile: Profile
    batch: int
    tied: bool = False
    precision: Precision = Precision.FP16
    bytes_each: BytesPerParameter = field(default_factory=BytesPerParameter)
    chunk_bytes: float = inf
    num_heads: int = 1
    max_tensor: int = 1
    recomputes: bool = False
    any_size: bool = False
    fixed: Fixed = field(default_factory=Fixed)

    def __post_init__(self) -> None:
        for name in ("batch", "num_heads", "max_tensor"):
            if getattr(self, name) < 1:
                raise PlanError(f"`{name}` must be at least 1, not {getattr(self, name)}")
        if (cut := self.fixed.cut) is not None:
            check_partition(cut, num_layers=self.num_layers, num_stages=len(cut))

    @property
    def num_layers(self) -> int:
        """The number of layers to partition."""
        return len(self.profile.layers)

    @cached_property
    def slow(self) -> np.ndarray:
        """The compute time of each device relative to the profiled device."""
        return slowness(self.cluster, self.profile, self.precision)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all devices, and all links between two of them, are alike: any order will do."""
        cluster = self.cluster
        apart = ~np.eye(len(cluster), dtype=bool)
        matrices = (cluster.latency_s, cluster.bandwidth_bytes_per_s)
        is_alike = all(len(np.unique(each[apart])) <= 1 for each in matrices)
        memories = {device.memory_bytes for device in cluster.devices}
        # Devices of a host share its NIC.
        is_alike &= len(set(cluster.host_of)) in (1, len(cluster)) and len(memories) == 1
        return is_alike and len(np.unique(self.slow)) == 1

    @cached_property
    def balanced_cut(self) -> Callable[[tuple[float, ...]], Cut]:
        """The cut by cost for stages that are so slow; computed once for each of them."""
        return cache(lambda slow: balanced_cut(self.profile, np.array(slow)))

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that a plan may use."""
        return self.fixed.devices or tuple(range(len(self.cluster)))
