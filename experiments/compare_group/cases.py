"""The cases of the comparison, as `cases.toml` lists them, and the cluster of each."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

import topo
from experiments.compare_group.part import part
from jaxpipe.simulate import Workload, scheduled
from topo import Cluster

_FILE = Path(__file__).parent / "cases.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One network: a cluster of the catalogue, or its first pipelines of `devices` in all."""

    name: str
    cluster: str
    published: int | None = None
    devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """All networks, and the work that is the same on each of them."""

    layers: int
    batch: int
    seed: int
    cases: tuple[Case, ...]

    @property
    def workload(self) -> Workload:
        """What is trained."""
        return Workload(num_layers=self.layers, batch=self.batch)


def read_cases(path: Path = _FILE) -> Cases:
    """Read the cases.

    >>> [case.name for case in read_cases().cases][:2]
    ['case 1', 'case 2']
    """
    return msgspec.convert(tomllib.loads(path.read_text()), Cases)


def cluster_of(case: Case, *, batch: int) -> Cluster:
    """Return the devices that train; where some do not, they are those that DT-FM would take.

    >>> len(cluster_of(Case(name="", cluster="fluidstack-3region", devices=32), batch=1024))
    32
    """
    cluster = topo.load(case.cluster)
    if case.devices is None:
        return cluster
    used = [device for row in scheduled(cluster, batch=batch) for device in row]
    assert len(used) == case.devices, (case, used)
    return part(cluster, used)
