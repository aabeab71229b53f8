"""Sailor's simulator, written from its formula: the judge of all planners' layouts.

::

    step = (M - 1) max over stages (c + x)  +  sum of x  +  sum of c  +  u  +  g

M is the number of microbatches, c the compute of a stage for one of them, x its messages, u the
optimizer, g the gradient all-reduce of the slowest stage. Nothing overlaps, and the schedule has no
part in it. Dollars are not in the published formula; these give the published ones to four digits.
"""

from itertools import accumulate, pairwise
from math import inf

from experiments.sailor.published import (
    LayerCost,
    Model,
    gpu_table,
    links,
    transfer_prices,
)
from jaxpipe.search.layout import Group, Layout, Stage, facing, neighbours

BYTES = 4
"""Of one number: parameters, gradients and activations."""
_BUCKET_BYTES = 5e8
_STATE_BYTES = 24
"""For each parameter: itself, its gradient, Adam's moments, and their copies."""
_OTHER_BYTES = {False: 2e9, True: 3e9}
"""Taken by a process, without and with tensor parallelism."""
_MOST_STREAMS = 4


class Judge:
    """The judge of the layouts of one model and batch; remembers what layouts have in common."""

    def __init__(self, model: Model, batch: int) -> None:
        self.model = model
        self.batch = batch
        self._sums: dict[tuple[str, int, int], list[float]] = {}
        self._message_s: dict[tuple[Group, Group, float, int, int], float] = {}
        self._parameters = [0, *accumulate(size.parameters for size in model.sizes[1])]
        self._tables = links()
        self._memory = {gpu: float(row["memory_gib"]) * 2**30 for gpu, row in gpu_table().items()}
        self._sizes: dict[int, tuple[list[int], list[int]]] = {}

    def step_s(self, layout: Layout) -> float:
        """Return the seconds of a step."""
        compute = self.compute_s(layout)
        messages = self.messages_s(layout)
        slowest = max(c + x for c, x in zip(compute, messages, strict=True))
        return (
            (layout.num_microbatches(self.batch) - 1) * slowest
            + sum(messages)
            + sum(compute)
            + self.update_s(layout)
            + self.reduce_s(layout)
        )

    def dollars(self, layout: Layout, step_s: float) -> float:
        """Return the dollars of a step: of its GPUs, and of the bytes between zones."""
        gpus = sum(
            count * float(gpu_table()[gpu]["dollars_per_hour"]) / 3600
            for (gpu, _), count in layout.gpus().items()
        )
        return gpus * step_s + self._activation_dollars(layout) + self._gradient_dollars(layout)

    def fits(self, layout: Layout) -> bool:
        """Return whether every stage fits the memory of its GPUs."""
        return all(
            self.fits_gpus(group, (first, end), layout.num_stages - number, layout.microbatch)
            for number, (stage, (first, end)) in enumerate(
                zip(layout.stages, pairwise(_ends(layout)), strict=True)
            )
            for group, _ in stage
        )

    def fits_gpus(
        self, group: Group, layers: tuple[int, int], num_live: int, microbatch: int
    ) -> bool:
        """Return whether layers with `num_live` microbatches in flight fit the GPUs of a group."""
        if (group.gpu, microbatch, group.tensor) not in self.model.costs:
            return False
        parameters, kept = self._size_sums(group.tensor)
        first, end = layers
        needed = (
            _STATE_BYTES * (parameters[end] - parameters[first])
            + BYTES * microbatch * (kept[end] - kept[first]) * num_live
            + _OTHER_BYTES[group.tensor > 1]
        )
        return needed <= self._memory[group.gpu]

    def degrees(self, gpu: str, microbatch: int) -> list[int]:
        """Return the tensor degrees of a type that were profiled and fit a node."""
        known = self.model.costs
        most = int(gpu_table()[gpu]["gpus_per_node"])
        return [t for t in (1, 2, 4, 8) if t <= most and (gpu, microbatch, t) in known]

    def least_reduce_s(self, kind: Group, part: float, num_replicas: int) -> float:
        """Return the seconds of the all-reduce of a part of the model, between groups of a kind."""
        num_bytes = part * BYTES * self._parameters[-1] / min(_MOST_STREAMS, kind.tensor)
        rounds = 2 * (num_replicas - 1)
        return rounds * self.message_s(kind, kind, num_bytes / num_replicas, 1, 1)

    def hop_s(self, one: Group, other: Group, microbatch: int) -> float:
        """Return the seconds of a microbatch's activations from a group to another."""
        # All layers but the head have the same output.
        num_bytes = self._output_bytes(1, microbatch)
        return self.message_s(one, other, num_bytes, one.tensor, other.tensor)

    def compute_s(self, layout: Layout) -> list[float]:
        """Return c of each stage: its slowest replica's forward and backward."""
        seconds = []
        for stage, (first, end) in zip(layout.stages, pairwise(_ends(layout)), strict=True):
            sums = [self.layer_sums(group, layout.microbatch) for group, _ in stage]
            seconds.append(max(each[end] - each[first] for each in sums))
        return seconds

    def layer_sums(self, group: Group, microbatch: int) -> list[float]:
        """Return the seconds of forward and backward of the first 0, 1, 2... layers."""
        key = (group.gpu, microbatch, group.tensor)
        if key not in self._sums:
            each = (cost.forward_s + cost.backward_s for cost in self.model.costs[key])
            self._sums[key] = [0.0, *accumulate(each)]
        return self._sums[key]

    def messages_s(self, layout: Layout) -> list[float]:
        """Return x of each stage: messages to the next stage and to the previous one."""
        last = layout.num_stages - 1
        if not last:
            return [0.0]
        ends = _ends(layout)
        forth = [self._slowest_s(layout, (s, s + 1), ends[s + 1] - 1) for s in range(last)]
        back = [self._slowest_s(layout, (s, s - 1), ends[s]) for s in range(1, last + 1)]
        inside = [a + b for a, b in zip(forth[1:], back[:-1], strict=True)]
        return [forth[0] * (1 if last < 3 else 2), *inside, 2 * back[-1]]

    def update_s(self, layout: Layout) -> float:
        """Return u: the slowest optimizer of a stage's first layer."""
        return max(
            self._costs(group, layout.microbatch)[first].update_s
            for stage, first in zip(layout.stages, _ends(layout)[:-1], strict=True)
            for group, _ in stage
        )

    def reduce_s(self, layout: Layout) -> float:
        """Return g: the gradient all-reduce of the slowest stage."""
        return max(
            self.all_reduce_s(stage, layers)
            for stage, layers in zip(layout.stages, pairwise(_ends(layout)), strict=True)
        )

    def all_reduce_s(self, stage: Stage, layers: tuple[int, int]) -> float:
        """Return the seconds of the all-reduce of some layers between a stage's replicas."""
        replicas = sum(run.replicas for run in stage)
        least = min(_MOST_STREAMS, *(group.tensor for group, _ in stage))
        full, rest = divmod(BYTES * self._num_parameters(layers) / least, _BUCKET_BYTES)
        slowest_s = 0.0
        for one, other in neighbours(stage):
            seconds = full * self.message_s(one, other, _BUCKET_BYTES / replicas, 1, 1)
            if rest:
                seconds += self.message_s(one, other, rest / replicas, 1, 1)
            slowest_s = max(slowest_s, seconds)
        return 2 * (replicas - 1) * slowest_s

    def message_s(
        self, one: Group, other: Group, num_bytes: float, streams: int, to_streams: int
    ) -> float:
        """Return the seconds of a message from a node to another; infinite without a link."""
        key = (one, other, num_bytes, streams, to_streams)
        if key not in self._message_s:
            ends = ((one.gpu, one.zone), streams, (other.gpu, other.zone), to_streams)
            curve = self._tables.get(ends)
            self._message_s[key] = inf if curve is None else curve.seconds(num_bytes)
        return self._message_s[key]

    def _size_sums(self, tensor: int) -> tuple[list[int], list[int]]:
        """Return the parameters, and the kept numbers, of the first 0, 1, 2... layers on a GPU."""
        if tensor not in self._sizes:
            sizes = self.model.sizes[tensor]
            self._sizes[tensor] = (
                [0, *accumulate(size.parameters for size in sizes)],
                [0, *accumulate(size.kept_floats for size in sizes)],
            )
        return self._sizes[tensor]

    def _slowest_s(self, layout: Layout, ends: tuple[int, int], layer: int) -> float:
        """Return the seconds of the slowest message of a layer's output from stage to stage."""
        num_bytes = self._output_bytes(layer, layout.microbatch)
        return max(
            self.message_s(one, other, num_bytes, one.tensor, other.tensor)
            for one, other, _ in facing(layout.stages[ends[0]], layout.stages[ends[1]])
        )

    def _activation_dollars(self, layout: Layout) -> float:
        prices = transfer_prices()
        total = 0.0
        for stage in range(layout.num_stages - 1):
            layer = _ends(layout)[stage + 1] - 1
            num_bytes = self._output_bytes(layer, layout.microbatch)
            for one, other, count in facing(layout.stages[stage], layout.stages[stage + 1]):
                both = prices[one.zone, other.zone] + prices[other.zone, one.zone]
                total += layout.num_microbatches(self.batch) * count * num_bytes * both
        return total

    def _gradient_dollars(self, layout: Layout) -> float:
        prices = transfer_prices()
        total = 0.0
        for stage, layers in zip(layout.stages, pairwise(_ends(layout)), strict=True):
            replicas = sum(run.replicas for run in stage)
            num_bytes = BYTES * self._num_parameters(layers) * 2 * (replicas - 1) / replicas
            # A ring: the last replica sends to the first.
            following = (*stage[1:], stage[0])
            for (group, _), (other, _) in zip(stage, following, strict=True):
                total += num_bytes * prices[group.zone, other.zone]
        return total

    def _num_parameters(self, layers: tuple[int, int]) -> int:
        return self._parameters[layers[1]] - self._parameters[layers[0]]

    def _output_bytes(self, layer: int, microbatch: int) -> float:
        return BYTES * self.model.sizes[1][layer].output_floats * microbatch

    def _costs(self, group: Group, microbatch: int) -> tuple[LayerCost, ...]:
        return self.model.costs[group.gpu, microbatch, group.tensor]


def _ends(layout: Layout) -> list[int]:
    """Return the first layer of each stage, and the number of layers."""
    return [0, *accumulate(layout.cut)]
