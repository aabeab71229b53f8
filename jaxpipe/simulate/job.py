"""A job: everything that decides how long a step takes, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxpipe.errors import PlanError
from jaxpipe.schedule import Bucket, Schedule
from jaxpipe.simulate.collective import Collective
from jaxpipe.simulate.wire import Wire
from topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Lowered programs that all replicas run, and whether all ranks meet when they are done."""

    schedule: Schedule
    meets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training step.

    `placement[replica][stage]` is a device of the cluster; rank r holds stage r % num_stages of
    replica r // num_stages. The phases run one after the other, without a pause where ranks do not
    meet. `forward_s[rank]` and `backward_s[rank]` are the seconds of a microbatch, `update_s` those
    of the optimizer; `activation_bytes` is the size of every message between stages.
    `collectives[bucket]` are the disjoint collectives, over ranks, that a reduction of the bucket
    means; a bucket without any takes no time.

    Raises:
        PlanError: the placement, the phases and the durations do not fit each other.
    """

    cluster: Cluster
    placement: tuple[tuple[int, ...], ...]
    phases: tuple[Phase, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: float = 0.0
    activation_bytes: float = 0.0
    collectives: Mapping[Bucket, tuple[Collective, ...]] = field(default_factory=dict)
    messages: Wire = field(default_factory=Wire)
    gradients: Wire = field(default_factory=Wire)
    nic_efficiency: float = 1.0

    def __post_init__(self) -> None:
        devices = [device for row in self.placement for device in row]
        if len(set(devices)) != len(devices) or not set(devices) <= set(range(len(self.cluster))):
            raise PlanError(
                f"each rank has a device of its own: `placement` is {self.placement} on a cluster "
                f"of {len(self.cluster)}; name each device once at most"
            )
        if {len(row) for row in self.placement} != {self.num_stages}:
            raise PlanError(
                "all replicas have the same stages: the rows of `placement` have "
                f"{[len(row) for row in self.placement]} devices; make them equal"
            )
        for phase in self.phases:
            if len(phase.schedule) != self.num_stages:
                raise PlanError(
                    f"every stage has a program: `phases` has a schedule of "
                    f"{len(phase.schedule)} for {self.num_stages} stages; give one to each"
                )
        for name in ("forward_s", "backward_s"):
            seconds = getattr(self, name)
            if len(seconds) != self.num_ranks or not all(each > 0 for each in seconds):
                raise PlanError(
                    f"every rank takes its time: `{name}` has {len(seconds)} durations for "
                    f"{self.num_ranks} ranks; give a positive one to each"
                )
        if not 0 < self.nic_efficiency <= 1:
            raise PlanError(
                f"a part of a NIC is usable: `nic_efficiency` is {self.nic_efficiency}; "
                "make it above 0 and at most 1"
            )

    @property
    def num_stages(self) -> int:
        """How many stages a pipeline has."""
        return len(self.placement[0])

    @property
    def num_ranks(self) -> int:
        """How many ranks run the job."""
        return len(self.placement) * self.num_stages

    def device(self, rank: int) -> int:
        """Return the device on which a rank runs."""
        return self.placement[rank // self.num_stages][rank % self.num_stages]
