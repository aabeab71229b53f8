"""Seconds of a step of a fleet in closed form, with NICs that many ranks share.

::

    pipeline    of each replica: the first microbatch, then each further one at its slowest stage,
                message, or round trip of the microbatches in flight
    shares      microbatches such that the last replica ends soonest
    sync        `jaxpipe.search.fleet.sync_cost`, after the last replica
    update      the slowest optimizer

A simulation of a hundred ranks that share NICs takes minutes; this takes hundredths of a second
for ten thousand.
All-reduces begin when all replicas have ended, so a step is rather too long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from jaxpipe.network import MessageCosts
from jaxpipe.plan.check import MAX_MICROBATCHES
from jaxpipe.plan.cost.layer_profile import Profile
from jaxpipe.plan.partition import Cut
from jaxpipe.schedule import ScheduleKind, peak_live_of_kind
from jaxpipe.search.fleet.fleet_links import FleetLinks, fleet_links
from jaxpipe.search.fleet.sync_cost import sync_s
from jaxpipe.search.fleet.team import Team, shared_out
from jaxpipe.search.task import Task


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetStep:
    """The seconds of a step by cause, and the microbatches of each replica, team by team."""

    pipeline_s: float
    sync_s: float = 0.0
    update_s: float = 0.0
    counts: np.ndarray

    @property
    def step_s(self) -> float:
        """The seconds of the whole step."""
        return self.pipeline_s + self.sync_s + self.update_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Flows:
    """How many messages of a microbatch share each NIC and each trunk, in one direction."""

    of_host: np.ndarray
    of_regions: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Costs:
    """A stage's seconds of a microbatch, and of its update."""

    compute_s: np.ndarray
    update_s: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: `cached_property` needs a `__dict__`
class FleetCosts:
    """The costs of teams on the cluster of a task.

    `messages` are the costs of activations; of the NICs `nic_efficiency` is usable. A stage whose
    messages stay inside its host takes `local_factor` times the seconds of the profile.
    """

    task: Task
    messages: MessageCosts
    nic_efficiency: float = 1.0
    local_factor: float = 1.0

    @cached_property
    def links(self) -> FleetLinks:
        """The network."""
        return fleet_links(self.task.cluster, nic_efficiency=self.nic_efficiency)

    def step(self, teams: Sequence[Team], *, microbatch: int, schedule: ScheduleKind) -> FleetStep:
        """Return the step of teams that share the batch; infinite if it does not suffice for all.

        The batch is a multiple of `microbatch`.
        """
        num_replicas = sum(team.num_replicas for team in teams)
        total = self.task.batch // microbatch
        if not num_replicas or not num_replicas <= total <= num_replicas * MAX_MICROBATCHES:
            return FleetStep(pipeline_s=inf, counts=np.array([], int))
        profile = self._profile(microbatch)
        flows = _Flows(
            of_host=sum((self._flows(team) for team in teams), np.zeros(self.links.num_hosts)),
            of_regions=sum(
                (self._region_flows(team) for team in teams), np.zeros(self.links.trunk.shape)
            ),
        )
        paces = [self._pace(team, profile, flows, schedule=schedule) for team in teams]
        first_s, each_s = (np.concatenate(part) for part in zip(*paces, strict=True))
        counts = shared_out(first_s, each_s, total)
        return FleetStep(
            pipeline_s=float((first_s + (counts - 1) * each_s).max()),
            sync_s=self.sync_s(teams) if num_replicas > 1 else 0.0,
            update_s=max(self._update_s(team, profile) for team in teams),
            counts=counts,
        )

    def sync_s(self, teams: Sequence[Team]) -> float:
        """Return the seconds of the all-reduces of all gradients."""
        embed = self.task.profile.embed.num_gradients * self.task.bytes_each.gradient
        is_shared = self.task.tied and any(len(team.cut) > 1 for team in teams)
        return sync_s(
            teams, self.links, layer_bytes=self._layer_bytes, embed_bytes=embed * is_shared
        )

    @cached_property
    def _layer_bytes(self) -> np.ndarray:
        cut = (1,) * self.task.num_layers
        parts = (self.task.profile.stage(cut, layer) for layer in range(self.task.num_layers))
        return np.array(
            [part.num_gradients * self.task.bytes_each.gradient for part in parts], float
        )

    @cached_property
    def _profiles(self) -> dict[int, Profile]:
        return {}

    @cached_property
    def _stages(self) -> dict[tuple[int, Cut], _Costs]:
        return {}

    def _profile(self, microbatch: int) -> Profile:
        if microbatch not in self._profiles:
            self._profiles[microbatch] = self.task.profile.scaled(microbatch=microbatch)
        return self._profiles[microbatch]

    def _of_stages(self, cut: Cut, profile: Profile) -> _Costs:
        key = (profile.microbatch, cut)
        if key not in self._stages:
            parts = [profile.stage(cut, stage) for stage in range(len(cut))]
            tied = self.task.tied
            self._stages[key] = _Costs(
                compute_s=np.array([part.forward_s + part.backward_s for part in parts]),
                update_s=np.array([profile.update_s(cut, n, tied=tied) for n in range(len(cut))]),
            )
        return self._stages[key]

    def _update_s(self, team: Team, profile: Profile) -> float:
        costs = self._of_stages(team.cut, profile)
        return float((self.task.slow[team.devices] * costs.update_s).max())

    def _crossing(self, team: Team) -> np.ndarray:
        hosts = self.links.host[team.devices]
        return hosts[:, :-1] != hosts[:, 1:]

    def _flows(self, team: Team) -> np.ndarray:
        """Return how many neighbours on other hosts the ranks of each host exchange with."""
        hosts, crossing = self.links.host[team.devices], self._crossing(team)
        ends = np.concatenate((hosts[:, :-1][crossing], hosts[:, 1:][crossing]))
        return np.bincount(ends, minlength=self.links.num_hosts)

    def _region_flows(self, team: Team) -> np.ndarray:
        """Return how many pairs of neighbours are in each pair of regions, in either order."""
        regions = self.links.region[self.links.host[team.devices]]
        counts = np.zeros(self.links.trunk.shape)
        np.add.at(counts, (regions[:, :-1], regions[:, 1:]), 1)
        return counts + counts.T

    def _pace(
        self, team: Team, profile: Profile, flows: _Flows, *, schedule: ScheduleKind
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return of each replica the seconds of its first microbatch, and of each further one."""
        devices, crossing = team.devices, self._crossing(team)
        is_remote = np.zeros(devices.shape, bool)
        is_remote[:, :-1] |= crossing
        is_remote[:, 1:] |= crossing
        compute = self.task.slow[devices] * self._of_stages(team.cut, profile).compute_s
        compute *= np.where(is_remote, 1.0, self.local_factor)
        slowest = compute.max(axis=1)
        hop = np.zeros(devices.shape)  # to the next stage and back
        num_bytes = np.array(profile.message_bytes(team.cut))
        for ahead, behind in ((devices[:, :-1], devices[:, 1:]), (devices[:, 1:], devices[:, :-1])):
            alone, shared = self._wires(ahead, behind, crossing, num_bytes, flows)
            hop[:, :-1] += self.task.cluster.latency_s[ahead, behind] + alone
            slowest = np.maximum(slowest, shared.max(axis=1, initial=0.0))
        # From each stage to the end and back, over the microbatches that it keeps in flight.
        trip = np.cumsum((compute + hop)[:, ::-1], axis=1)[:, ::-1]
        size = len(team.cut)
        in_flight = peak_live_of_kind(schedule, num_stages=size, num_microbatches=2 * size)
        return trip[:, 0], np.maximum(slowest, (trip / np.array(in_flight)).max(axis=1))

    def _wires(
        self,
        sources: np.ndarray,
        destinations: np.ndarray,
        crossing: np.ndarray,
        num_bytes: np.ndarray,
        flows: _Flows,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of messages on links, alone and with shares of NICs and trunks."""
        rate = self.task.cluster.alone_bytes_per_s[sources, destinations]
        capped = np.minimum(rate, self.messages.flow_bytes_per_s)
        alone = np.where(crossing, self.messages.overhead_s + num_bytes / capped, num_bytes / rate)
        host, limit = self.links.host, self.messages.host_bytes_per_s
        source, destination = host[sources], host[destinations]
        out = flows.of_host[source] / np.minimum(self.links.egress, limit)[source]
        into = flows.of_host[destination] / np.minimum(self.links.ingress, limit)[destination]
        regions = self.links.region[source], self.links.region[destination]
        across = flows.of_regions[regions] / self.links.trunk[regions]
        shared = num_bytes * np.maximum(np.maximum(out, into), across)
        return alone, np.where(crossing, np.maximum(alone, shared), alone)
