"""The costs of a search's task on groups of its devices: what a search for a layout needs.

A type are devices of one GPU, speed and memory; a place a type in a region. Links between places
count as the median of those between their devices.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import accumulate
from math import inf

import numpy as np

from jaxpipe.plan import Sharing
from jaxpipe.plan.cost import Part, Profile, SharedStage, shared_part
from jaxpipe.search.layout.layout import Group
from jaxpipe.search.layout.layout_task import Place
from jaxpipe.search.task import Task


class TaskCosts:
    """The costs of a task, as `StageCosts` and as `LayoutCosts`; each is computed once.

    Messages between stages overlap with computes, so `hop_s` is 0: only closed form and simulator
    count them.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self.types = tuple(
            f"{device.gpu.name if device.gpu else ''} {slow:.6g} {device.memory_bytes}"
            for device, slow in zip(task.cluster.devices, task.slow.tolist(), strict=True)
        )
        self._members: dict[Place, list[int]] = {}
        for number, kind in enumerate(self.types):
            place = kind, task.cluster.devices[number].region
            self._members.setdefault(place, []).append(number)
        self.part = cache(self._part)
        self.activation_rate = cache(self._rate)
        self.gradient_rate = self.activation_rate
        self.layer_sums = cache(self._layer_sums)
        self._scaled = cache(lambda size: task.profile.scaled(microbatch=size))

    @property
    def gpus(self) -> dict[Place, int]:
        """The devices of each place."""
        return {place: len(members) for place, members in self._members.items()}

    def degrees(self, gpu: str, microbatch: int) -> Sequence[int]:  # noqa: ARG002
        """Return the powers of two that a host of this type has devices for, within the task's."""
        most = min(self._task.max_tensor, self._per_host[gpu])
        powers = (2**n for n in range(most.bit_length()))
        return [size for size in powers if size <= most and self._task.num_heads % size == 0]

    @cached_property
    def _per_host(self) -> dict[str, int]:
        hosts = Counter(zip(self.types, self._task.cluster.host_of, strict=True))
        found: dict[str, int] = {}
        for (kind, _), count in hosts.items():
            found[kind] = max(count, found.get(kind, 0))
        return found

    def _part(self, group: Group, layers: range, microbatch: int) -> Part:
        """Return layers on a group, the first with the embedding, the last with the head."""
        task, profile = self._task, self._scaled(microbatch)
        devices = self._group(group)
        first, last = layers.start == 0, layers.stop == task.num_layers
        cut = tuple(
            size for size in (layers.start, len(layers), task.num_layers - layers.stop) if size
        )
        stage = int(not first)
        part = profile.stage(cut, stage).scaled(float(task.slow[devices[0]]))
        part = Part(
            forward_s=part.forward_s,
            backward_s=part.backward_s,
            parameters=part.parameters,
            trained=part.trained,
            update_s=profile.update_s(cut, stage, tied=task.tied) * float(task.slow[devices[0]]),
        )
        shared = SharedStage(
            group=devices,
            num_layers=len(layers),
            activation_bytes=profile.activation_bytes,
            gradient_bytes=part.num_gradients * task.bytes_each.gradient,
            is_first=first,
            is_last=last,
            recomputes=task.recomputes,
        )
        return shared_part(part, shared, Sharing.TENSOR, task.cluster)

    def _group(self, group: Group) -> tuple[int, ...]:
        """Return some devices of a group's place, of one host."""
        by_host: dict[int, list[int]] = {}
        for number in self._members[group.gpu, group.zone]:
            by_host.setdefault(self._task.cluster.host_of[number], []).append(number)
        return tuple(max(by_host.values(), key=len)[: group.tensor])

    def output_bytes(self, microbatch: int) -> float:
        """Return the bytes of a microbatch's activations between two stages."""
        return float(self._scaled(microbatch).activation_bytes)

    def _rate(self, one: Group, other: Group, num_bytes: float) -> float:
        """Return the bytes/s of a message between the places of two groups, latency included."""
        cluster = self._task.cluster
        pairs = np.ix_(self._members[one.gpu, one.zone], self._members[other.gpu, other.zone])
        # A device exchanges nothing with itself.
        apart = np.subtract.outer(*(np.array(pairs[0]).ravel(), np.array(pairs[1]).ravel())) != 0
        if not apart.any() or not num_bytes:
            return inf
        seconds = cluster.latency_s[pairs] + num_bytes / cluster.bandwidth_bytes_per_s[pairs]
        return num_bytes / float(np.median(seconds[apart])) if seconds[apart].any() else inf

    def _layer_sums(self, group: Group, microbatch: int) -> Sequence[float]:
        """Return the seconds of the first 0, 1, 2... layers, embedding and head included."""
        num_layers = self._task.num_layers
        parts = [self.part(group, range(n, n + 1), microbatch) for n in range(num_layers)]
        return [0.0, *accumulate(part.forward_s + part.backward_s for part in parts)]

    def fits_gpus(
        self, group: Group, layers: tuple[int, int], num_live: int, microbatch: int
    ) -> bool:
        """Return whether layers with `num_live` microbatches in flight fit the group's devices."""
        task = self._task
        memory = task.cluster.devices[self._members[group.gpu, group.zone][0]].memory_bytes
        return memory is None or self._held(layers, num_live, microbatch) <= memory * group.tensor

    def _held(self, layers: tuple[int, int], num_live: int, microbatch: int) -> float:
        task, profile = self._task, self._scaled(microbatch)
        first, end = layers
        sums = self._sizes(profile)
        parameters, gradients, kept = (each[end] - each[first] for each in sums)
        if task.tied and first > 0 and end == task.num_layers:
            parameters += profile.embed.parameters
            gradients += profile.embed.num_gradients
        of = task.bytes_each
        state = parameters * of.parameter + gradients * (of.gradient + of.optimizer)
        live = parameters * of.copy + num_live * (kept + profile.activation_bytes)
        return state + max(live, gradients * of.gradient)

    def _sizes(self, profile: Profile) -> tuple[list[int], list[int], list[int]]:
        parts = list(profile.layers)
        parts[0] += profile.embed
        parts[-1] += profile.head
        return (
            [0, *accumulate(part.parameters for part in parts)],
            [0, *accumulate(part.num_gradients for part in parts)],
            [0, *accumulate(part.kept_bytes for part in parts)],
        )

    def hop_s(self, one: Group, other: Group, microbatch: int) -> float:  # noqa: ARG002
        """Return no seconds: a message overlaps with the computes of its ranks."""
        return 0.0

    def least_reduce_s(self, kind: Group, part: float, num_replicas: int) -> float:  # noqa: ARG002
        """Return no seconds: ranks of a host may exchange gradients at any speed."""
        return 0.0
