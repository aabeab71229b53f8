"""The cost of a stage that is sharded over its submesh, dp x op as the fastest that fits.

::

    a microbatch    layers x (products + memory + collectives along op)  +  those of the ends
    a step          gradients summed along dp, and the optimizer, spread over the microbatches

`Works` say what layers cost on op devices (`jaxpipe.baselines.gpt.sharded_layers`); dp divides
samples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from jaxpipe.baselines.autoshard.inter_op.submesh_stage import StageCost


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWork:
    """A layer, the embedding or the head, on one of op devices.

    Args:
        seconds: forward and backward of a microbatch [s].
        parameters: that the device holds.
        kept_bytes: from the forward of a microbatch to its backward.
        working_bytes: during its own backward, once at a time.
    """

    seconds: float
    parameters: float
    kept_bytes: float = 0.0
    working_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """The parts of a model, for some samples of a microbatch on op devices."""

    layer: PartWork
    embed: PartWork
    head: PartWork


Works: TypeAlias = Callable[[int, int], ModelWork]
"""The parts of a model for a number of devices on axis op, and a number of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Equal hosts in a row, each with as many devices.

    Args:
        devices: of a host.
        ring_bytes_per_s: the speed of a ring through a group of devices of a host.
        link_bytes_per_s: of the network card of a host.
        memory_bytes: of a device.
        memory_bytes_per_s: the speed of that memory.
    """

    devices: int
    ring_bytes_per_s: Callable[[int], float]
    link_bytes_per_s: float
    memory_bytes: float
    memory_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesEach:
    """Bytes for each parameter: stored, of its gradient, and moved by the optimizer."""

    stored: float
    gradient: float
    update: float


def _allows_all(_dp: int, _op: int) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedCosts:
    """The costs of stages for one size of microbatch.

    Args:
        works: what parts of the model cost.
        hosts: the devices.
        per_parameter: bytes for each parameter.
        num_layers: of the model.
        microbatch: samples, over all devices of a stage.
        num_microbatches: in a step.
        allows: whether a stage may be dp x op.
    """

    works: Works
    hosts: Hosts
    per_parameter: BytesEach
    num_layers: int
    microbatch: int
    num_microbatches: int
    allows: Callable[[int, int], bool] = _allows_all
    _known: dict[tuple[int, bool, bool, int], tuple[StageCost, tuple[int, int]] | None] = field(
        default_factory=dict
    )

    def __call__(self, layers: range, devices: range) -> StageCost | None:
        """Return the cost of a stage, or None if its devices do not divide a microbatch."""
        best = self._best(layers, len(devices))
        return None if best is None else best[0]

    def shape(self, layers: range, devices: range) -> tuple[int, int]:
        """Return the sizes of dp and op of a stage that is possible."""
        best = self._best(layers, len(devices))
        assert best is not None, (layers, devices)
        return best[1]

    def _best(self, layers: range, size: int) -> tuple[StageCost, tuple[int, int]] | None:
        ends = layers.start == 0, layers.stop == self.num_layers
        key = (len(layers), *ends, size)
        if key not in self._known:
            room = self.hosts.memory_bytes
            candidates = [
                (cost.held_bytes + cost.live_bytes > room, cost.seconds, cost, shape)
                for shape in self._shapes(size)
                for cost in (self._cost(len(layers), ends, shape),)
            ]
            # What fits goes first, then what is fast; shapes are in order, so ties are decided.
            best = min(candidates, key=lambda candidate: candidate[:2]) if candidates else None
            self._known[key] = None if best is None else best[2:]
        return self._known[key]

    def _shapes(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield dp and op: op inside of a host, dp a divisor of the microbatch."""
        for op in range(1, min(size, self.hosts.devices) + 1):
            if size % op == 0 and self.hosts.devices % op == 0 and op & (op - 1) == 0:
                dp = size // op
                if self.microbatch % dp == 0 and self.allows(dp, op):
                    yield dp, op

    def _cost(self, num_layers: int, ends: tuple[bool, bool], shape: tuple[int, int]) -> StageCost:
        dp, op = shape
        work = self.works(op, self.microbatch // dp)
        parts = [(num_layers, work.layer)]
        parts += [
            (1, part)
            for part, is_here in zip((work.embed, work.head), ends, strict=True)
            if is_here
        ]
        parameters = sum(count * part.parameters for count, part in parts)
        once_s = parameters * self.per_parameter.update / self.hosts.memory_bytes_per_s
        once_s += self._sum_s(parameters * self.per_parameter.gradient, dp=dp, op=op)
        return StageCost(
            seconds=sum(count * part.seconds for count, part in parts)
            + once_s / self.num_microbatches,
            held_bytes=parameters * self.per_parameter.stored
            + max(part.working_bytes for _, part in parts),
            live_bytes=sum(count * part.kept_bytes for count, part in parts),
        )

    def _sum_s(self, num_bytes: float, *, dp: int, op: int) -> float:
        """Return the seconds of the all-reduce of gradients along dp, by a ring."""
        if dp == 1:
            return 0.0
        if dp * op <= self.hosts.devices:
            speed = self.hosts.ring_bytes_per_s(dp)
        else:
            # The rings of all op groups leave a host by the same card.
            speed = self.hosts.link_bytes_per_s / op
        return 2 * (dp - 1) / dp * num_bytes / speed
