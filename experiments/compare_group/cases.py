"""Cases, their clusters, and the settings that are compared on each of them."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import msgspec
import numpy as np

import topo
from jaxpipe.simulate import Workload, scheduled
from topo import Cluster


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
    return part(cluster, used)


def part(cluster: Cluster, devices: Sequence[int], *, name: str | None = None) -> Cluster:
    """Return the cluster of some devices only, in this order, optionally under a new name.

    >>> import topo
    >>> part(topo.load("two-region"), (0, 2)).regions
    ('ohio', 'virginia')
    """
    grid = np.ix_(devices, devices)
    chosen = tuple(cluster.devices[device] for device in devices)
    hosts = {device.host for device in chosen}
    return replace(
        cluster,
        name=name or cluster.name,
        devices=chosen,
        hosts=tuple(host for host in cluster.hosts if host.name in hosts),
        latency_s=cluster.latency_s[grid],
        bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s[grid],
        alone_bytes_per_s=cluster.alone_bytes_per_s[grid],
    )
