"""The step of a published system as one device runs it: computes, collectives, and waits for them.

Each device has a compute thread and a network thread, which runs one collective at a time. The
program of the compute thread is what `jaxpipe.baselines.autoshard.duplex` prices::

    whole steps   activations are awaited, one all-reduce of the gradients ends the backward, or
                  those of buckets run under it
    HiDup         of two halves, collectives of one run beside the compute of the other, forward

Times of collectives are no part of a program, only their kinds and bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxpipe.baselines.autoshard.duplex import (
    CollectiveProfile,
    CostModel,
    OperatorDecision,
    backward_conversion,
    conversion,
    search,
)
from jaxpipe.baselines.autoshard.duplex.duplex_systems import (
    DuplexWorkload,
    bucket_bytes,
    fusing_s,
    groups_s,
    strategy_of,
    sums_gradients,
)
from jaxpipe.baselines.autoshard.duplex.form import FULL
from jaxpipe.baselines.autoshard.duplex.operator_cost import BACKWARD
from jaxpipe.baselines.autoshard.duplex.routing_load import RoutingGroup
from jaxpipe.baselines.autoshard.duplex.stage_seconds import costs_of
from jaxpipe.baselines.autoshard.duplex.timeline import replicated_bytes
from jaxpipe.baselines.systems import System
from jaxpipe.collective.kinds import CollectiveKind

_GROUPS = {System.DEEPSPEED_MOE: RoutingGroup.DEVICE, System.FASTMOE: RoutingGroup.NONE}


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute for some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Communicate:
    """Start a collective of a tensor of `num_bytes` in all; its number is its position."""

    kind: CollectiveKind
    num_bytes: float


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until all collectives before the `count`-th have ended."""

    count: int


Program = tuple[Compute | Communicate | Await, ...]


def program_of(system: System, workload: DuplexWorkload) -> Program:
    """Return the program of HiDup, DeepSpeed-MoE, FastMoE, Horovod or DDP."""
    if system is System.HIDUP:
        model = workload.model(RoutingGroup.SEQUENCE, halves=2, overlaps_backward=False)
        return _Writer(model, search(model).strategy).halves()
    group = _GROUPS.get(system, RoutingGroup.SEQUENCE)
    model = workload.model(group, halves=1)
    strategy = strategy_of(system, model.graph, num_devices=workload.profile.devices)
    fusing = fusing_s(
        system, model, strategy, memory_bytes_per_s=workload.device.memory_bytes_per_s
    )
    return _Writer(model, strategy, exchanged=workload.fullest_host(group)).whole(
        counts=system is System.FASTMOE,
        bucket=bucket_bytes(system) if sums_gradients(system, workload) else None,
        others_s=fusing + groups_s(system, model.graph, workload),
    )


def simulated_s(program: Program, profile: CollectiveProfile) -> float:
    """Return the seconds of a program, with collectives as fast as a profile says.

    >>> profile = CollectiveProfile(devices=2, all_to_all=1.0)
    >>> send = Communicate(CollectiveKind.ALL_TO_ALL, 3.0)
    >>> simulated_s((send, Compute(2.0), Await(1), Compute(1.0)), profile)
    4.0
    """
    compute, ends = 0.0, [0.0]
    for each in program:
        match each:
            case Compute():
                compute += each.seconds
            case Communicate():
                ends.append(max(compute, ends[-1]) + profile.seconds(each.kind, each.num_bytes))
            case Await():
                compute = max(compute, ends[each.count])
    return max(compute, ends[-1])


class _Writer:
    """Writes the program of a strategy under a cost model."""

    def __init__(
        self, model: CostModel, strategy: Sequence[OperatorDecision], *, exchanged: float = 1.0
    ) -> None:
        self._model, self._strategy = model, strategy
        self._exchanged = exchanged
        """Bytes of an all-to-all over those of an even one: all wait for the fullest host."""
        self._costs = costs_of(model, strategy)
        self._written: list[Compute | Communicate | Await] = []
        self._count = 0

    def whole(self, *, counts: bool, bucket: float | None, others_s: float) -> Program:
        """Return the program of a whole batch.

        Args:
            counts: whether an exchange of counts precedes each mixture.
            bucket: gradients that are all-reduced at once [bytes]; None if they are not at all.
            others_s: copies of gradients and what groups of messages take, which end the step [s].
        """
        steps = list(zip(self._costs, self._strategy, strict=True))
        for index, (cost, decision) in enumerate(steps):
            if counts and self._is_dispatch(index):
                self._send([(CollectiveKind.ALL_TO_ALL, 0.0)])
            self._send_and_await(self._moved(decision, forward=True))
            self._compute(cost.compute_s)
        waiting = 0.0
        for cost, decision in reversed(steps):
            self._compute(BACKWARD * cost.compute_s)
            self._send_and_await(self._moved(decision, forward=False))
            if bucket is None:
                continue
            waiting += replicated_bytes(self._model, [decision])
            if waiting >= bucket:
                self._send([(CollectiveKind.ALL_REDUCE, waiting)])
                waiting = 0.0
        if waiting:
            self._send([(CollectiveKind.ALL_REDUCE, waiting)])
        return self._ended(others_s)

    def halves(self) -> Program:
        """Return the program of two halves; collectives of parameters are one of each stage."""
        stages = [*self._stages()]
        ready = [0, 0]
        for half, stage in _alternating(stages):
            # The collectives of this stage and half start under the compute before it: see below.
            if half == 0 and stage is stages[0]:
                self._send_forward(stage, half, ready)
            self._await(ready[half])
            # Now the other half's collectives, which hide behind this compute.
            following = stage if half == 0 else _after(stages, stage)
            if following is not None:
                self._send_forward(following, 1 - half, ready)
            self._compute(sum(self._costs[each].compute_s for each in stage))
        for stage in reversed(stages):
            for half in (0, 1):
                self._compute(BACKWARD * sum(self._costs[each].compute_s for each in stage))
                for each in reversed(stage):
                    self._send(self._moved(self._strategy[each], forward=False))
                if half:
                    self._send(self._parameters(stage, forward=False))
                self._await()
        return self._ended()

    def _send_forward(self, stage: Sequence[int], half: int, ready: list[int]) -> None:
        if half == 0:
            self._send(self._parameters(stage, forward=True))
        for each in stage:
            self._send(self._moved(self._strategy[each], forward=True))
        ready[half] = self._count

    def _stages(self) -> Iterator[tuple[int, ...]]:
        begins = [
            index for index, each in enumerate(self._strategy) if each.starts_stage or not index
        ]
        for begin, end in zip(begins, [*begins[1:], len(self._strategy)], strict=True):
            yield tuple(range(begin, end))

    def _moved(
        self, decision: OperatorDecision, *, forward: bool
    ) -> list[tuple[CollectiveKind, float]]:
        kind_of = conversion if forward else backward_conversion
        return [
            (kind, self._model.graph.num_bytes(each.labels) / self._model.halves)
            for each in decision.conversions
            if (kind := kind_of(each.source, each.target)) is not None
        ]

    def _parameters(
        self, stage: Sequence[int], *, forward: bool
    ) -> list[tuple[CollectiveKind, float]]:
        totals: dict[CollectiveKind, float] = {}
        for each in (each for index in stage for each in self._strategy[index].placements):
            if each.used != FULL:
                continue
            if each.stored == FULL:
                kind = None if forward else CollectiveKind.ALL_REDUCE
            else:
                kind = CollectiveKind.ALL_GATHER if forward else CollectiveKind.REDUCE_SCATTER
            if kind is not None:
                totals[kind] = totals.get(kind, 0.0) + self._model.graph.num_bytes(each.labels)
        return [*totals.items()]

    def _is_dispatch(self, index: int) -> bool:
        """Return whether an operator is the first of the experts of a mixture."""
        operator = self._model.graph.operators[index]
        return bool(
            self._moved(self._strategy[index], forward=True)
            and "e" in operator.operands[0]
            and "e" in operator.result
        )

    def _compute(self, seconds: float) -> None:
        self._written.append(Compute(seconds))

    def _send(self, collectives: Sequence[tuple[CollectiveKind, float]]) -> None:
        for kind, num_bytes in collectives:
            uneven = self._exchanged if kind is CollectiveKind.ALL_TO_ALL else 1.0
            self._written.append(Communicate(kind, uneven * num_bytes))
            self._count += 1

    def _send_and_await(self, collectives: Sequence[tuple[CollectiveKind, float]]) -> None:
        """Send, and wait; without collectives, what runs under the compute is not awaited."""
        self._send(collectives)
        if collectives:
            self._await()

    def _await(self, count: int | None = None) -> None:
        self._written.append(Await(self._count if count is None else count))

    def _ended(self, others_s: float = 0.0) -> Program:
        self._await()
        self._compute(sum(each.update_s for each in self._costs) + others_s)
        return tuple(self._written)


def _alternating(stages: Sequence[Sequence[int]]) -> Iterator[tuple[int, Sequence[int]]]:
    for stage in stages:
        yield 0, stage
        yield 1, stage


def _after(stages: Sequence[Sequence[int]], stage: Sequence[int]) -> Sequence[int] | None:
    number = stages.index(stage) + 1
    return stages[number] if number < len(stages) else None
