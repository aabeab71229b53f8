"""Cases, their clusters, and the settings that are compared on each of them."""

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from jaxpipe import topo
from jaxpipe.baselines.published.dtfm import scheduled
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.topo import Cluster


class Setting(StrEnum):
    """A system with a placement; the reports name it by its letter."""

    MEGATRON_OPTIMAL = "a megatron-optimal"
    """Megatron's best layout: 8 stages, 4 x 2, 2 x 4, or tensor parallelism over 8 devices."""
    MEGATRON_P8 = "b megatron-p8"
    """Megatron's pipeline of 8 stages."""
    OURS = "c ours"
    """jaxpipe, with the plan that its planner found."""
    OURS_UNSCHEDULED = "d ours-unscheduled"
    """The same plan with random placement and all-reduces in rank order."""
    DTFM = "e dtfm"
    """DT-FM's runtime with its scheduler's placement."""
    DTFM_UNSCHEDULED = "e dtfm-unscheduled"
    """DT-FM's runtime with random placement."""
    ZERO3 = "f zero-s3"
    """ZeRO-3 over all devices."""

    @property
    def letter(self) -> str:
        """The letter.

        >>> Setting.OURS.letter
        'c'
        """
        return self.value[0]


_FILE = Path(__file__).parent / "cases.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network: a cluster of the catalogue; optionally, the `devices` that train are fewer."""

    name: str
    cluster: str
    published: int | None = None
    devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """All networks, and the workload that they share."""

    layers: int
    batch: int
    seed: int
    cases: tuple[Case, ...]

    @property
    def workload(self) -> Workload:
        """The model and batch that are trained."""
        return Workload(num_layers=self.layers, batch=self.batch)


def read_cases(path: Path = _FILE) -> Cases:
    """Read the cases.

    >>> [case.name for case in read_cases().cases][:2]
    ['case 1', 'case 2']
    """
    return msgspec.convert(tomllib.loads(path.read_text()), Cases)


def cluster_of(case: Case, *, batch: int) -> Cluster:
    """Return the cluster of the devices that train; if not all do, those that DT-FM would use.

    >>> len(cluster_of(Case(name="", cluster="fluidstack-3region", devices=32), batch=1024))
    32
    """
    cluster = topo.load(case.cluster)
    if case.devices is None:
        return cluster
    used = [device for row in scheduled(cluster, batch=batch) for device in row]
    assert len(used) == case.devices, (case, used)
    return topo.subcluster(cluster, used)
