"""Blocks: the equal devices of a region, which a search takes as one, and their replicas.

::

    block        hosts of equal devices in one region                  a choice for each: how many
    choice       stages, and whether a host holds a pipeline           stages, and along what
                 or one stage of several
    teams        replicas of the block; the devices of a region that are left over may be pooled
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from jaxpipe.plan.partition import Cut
from jaxpipe.search.balance import balanced_cut
from jaxpipe.search.fleet.team import Team
from jaxpipe.search.task import Task


class Along(StrEnum):
    """What the devices of a host hold."""

    PIPELINE = "pipeline"
    """Consecutive stages of a replica: messages stay inside hosts, gradients leave them."""
    STAGE = "stage"
    """One stage of several replicas: gradients are summed inside hosts, messages leave them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The stages of the replicas of a block, 0 if it is left out, and their direction."""

    stages: int
    along: Along = Along.PIPELINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The devices of a region of one speed and memory, host by host."""

    region: str
    kind: tuple[float, float]
    """How slow its devices are, and their bytes of memory."""
    hosts: tuple[tuple[int, ...], ...]

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return sum(map(len, self.hosts))


def blocks_of(task: Task) -> tuple[Block, ...]:
    """Return the blocks of a cluster, in the order of their first devices."""
    found: dict[tuple[str, float, float], dict[str, list[int]]] = {}
    for number, device in enumerate(task.cluster.devices):
        memory = np.inf if device.memory_bytes is None else device.memory_bytes
        key = (device.region, float(task.slow[number]), float(memory))
        found.setdefault(key, {}).setdefault(device.host, []).append(number)
    return tuple(
        Block(region=region, kind=(slow, memory), hosts=tuple(map(tuple, hosts.values())))
        for (region, slow, memory), hosts in found.items()
    )


class Teams:
    """The teams of choices for blocks; the replicas of a block are derived once for each choice."""

    def __init__(self, task: Task, blocks: tuple[Block, ...]) -> None:
        self.blocks = blocks
        self._task = task
        self._cuts: dict[tuple[float, ...], Cut] = {}
        self._known: dict[tuple[int, Choice], tuple[np.ndarray, list[int]]] = {}

    def of(self, choices: Mapping[int, Choice]) -> list[Team]:
        """Return the teams of a choice for each block, by its number."""
        found = (self._rows(number, choice)[0] for number, choice in choices.items())
        return [self._team(rows) for rows in found if len(rows)]

    def pooled(self, choices: Mapping[int, Choice], region: str, stages: int) -> list[Team]:
        """Return further replicas of the devices that the blocks of a region leave over."""
        rest = [
            device
            for number, choice in choices.items()
            if self.blocks[number].region == region
            for device in self._rows(number, choice)[1]
        ]
        # Slow devices together: then few replicas wait for them.
        rest.sort(key=lambda device: (float(self._task.slow[device]), device))
        whole = np.array(rest[: len(rest) // stages * stages], int).reshape(-1, stages)
        return self._by_cut(whole)

    def _rows(self, number: int, choice: Choice) -> tuple[np.ndarray, list[int]]:
        """Return the replicas of a block, and the devices that are left over."""
        key = (number, choice)
        if key not in self._known:
            hosts = self.blocks[number].hosts
            rest = [device for host in hosts for device in host]
            rows = np.zeros((0, max(1, choice.stages)), int)
            if choice.stages and choice.along is Along.STAGE:
                across, rest = _across(hosts, choice.stages)
                rows = np.array(across, int).reshape(-1, choice.stages)
            if choice.stages:
                whole = len(rest) // choice.stages * choice.stages
                along = np.array(rest[:whole], int).reshape(-1, choice.stages)
                rows, rest = np.concatenate((rows, along)), rest[whole:]
            self._known[key] = rows, rest
        return self._known[key]

    def _team(self, rows: np.ndarray) -> Team:
        return Team(devices=rows, cut=self._cut(self._task.slow[rows].max(axis=0)))

    def _by_cut(self, rows: np.ndarray) -> list[Team]:
        """Return a team for all rows that are divided alike."""
        found: dict[Cut, list[np.ndarray]] = {}
        for row in rows:
            found.setdefault(self._cut(self._task.slow[row]), []).append(row)
        return [Team(devices=np.array(members), cut=cut) for cut, members in found.items()]

    def _cut(self, slow: np.ndarray) -> Cut:
        key = tuple(slow.tolist())
        if key not in self._cuts:
            self._cuts[key] = balanced_cut(self._task.profile, slow)
        return self._cuts[key]


def _across(hosts: tuple[tuple[int, ...], ...], stages: int) -> tuple[list[list[int]], list[int]]:
    """Return replicas whose stages are on hosts of their own, and the devices left over.

    >>> _across(((0, 1), (2, 3), (4, 5)), 2)
    ([[0, 2], [1, 3]], [4, 5])
    """
    rows: list[list[int]] = []
    rest: list[int] = []
    whole = len(hosts) // stages * stages
    for start in range(0, whole, stages):
        chosen = hosts[start : start + stages]
        size = min(map(len, chosen))
        rows += [[host[slot] for host in chosen] for slot in range(size)]
        rest += [device for host in chosen for device in host[size:]]
    return rows, rest + [device for host in hosts[whole:] for device in host]
