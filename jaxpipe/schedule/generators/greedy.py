"""Greedy schedules for given costs: a free rank starts its most urgent instruction that can run.

The ranks are simulated with the given seconds of stages and messages. A free rank takes::

    1. the next forward, if the activation is there and fewer microbatches than its warm-up are
       between forward and backward-input; if memory is full, a backward-weight makes room
    2. the next backward-input, if the gradient is there
    3. a backward-weight, which nothing waits for, if `WeightPlacement` allows
    4. nothing, until a message arrives

So ranks alternate as in 1F1B, at a depth that hides messages, and backward-weights fill the gaps.
Memory is the number of microbatches between forward and backward-weight.

Source of the idea: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 3.1.
"""

import heapq
import math
from dataclasses import dataclass, field
from enum import StrEnum

from jaxpipe.errors import PlanError
from jaxpipe.schedule.generators.durations import Costs
from jaxpipe.schedule.instruction import (
    Instruction,
    Op,
    Schedule,
    backward_input,
    backward_weight,
    forward,
)
from jaxpipe.schedule.virtual_stages import check_size


class WeightPlacement(StrEnum):
    """When to run a backward-weight whose memory no forward needs yet."""

    FILL = "fill"
    """Whenever nothing else can run."""
    GAPS = "gaps"
    """As `FILL`, but not if a message is known to arrive before it would end."""


def greedy(
    costs: Costs,
    *,
    num_microbatches: int,
    warmup: tuple[int, ...],
    max_live: tuple[int, ...],
    weights: WeightPlacement = WeightPlacement.FILL,
) -> Schedule:
    """Return the compute instructions of a schedule with split backwards for these costs.

    Rank s has at most `warmup[s]` microbatches between forward and backward-input, and at most
    `max_live[s]` between forward and backward-weight.

    >>> from jaxpipe.schedule.render import render
    >>> ones = (1.0,) * 3
    >>> costs = Costs(
    ...     forward_s=ones, backward_input_s=ones, backward_weight_s=ones, message_s=(0.0, 0.0)
    ... )
    >>> print(render(greedy(costs, num_microbatches=4, warmup=(3, 2, 1), max_live=(3, 3, 2))))
    stage 0  0  1  2  .  . <0>(0) 3 <1>(1)<2>(2) . <3>(3)
    stage 1  .  0  1  . <0> 2 <1>(0) 3 <2>(1)(2)<3>(3) .
    stage 2  .  .  0 <0> 1 <1>(0) 2 <2>(1) 3 <3>(2)(3) .

    Cost: some microseconds for each instruction.

    Raises:
        PlanError: there are no microbatches, or a rank may keep none.
    """
    check_size(num_stages=costs.num_stages, num_microbatches=num_microbatches)
    for name, depths in (("warmup", warmup), ("max_live", max_live)):
        if len(depths) != costs.num_stages or not all(depth >= 1 for depth in depths):
            raise PlanError(
                f"`{name}` {depths} must have a number of at least 1 for each of "
                f"{costs.num_stages} stages"
            )
    ranks = [
        _Rank(stage=stage, num_microbatches=num_microbatches, warmup=depth, max_live=live)
        for stage, (depth, live) in enumerate(zip(warmup, max_live, strict=True))
    ]
    ranks[0].activations_s = [0.0] * num_microbatches  # tokens: there from the start
    # Equal times go by stage: the same costs give the same schedule in every run.
    wakes = [(0.0, stage) for stage in range(costs.num_stages)]
    while wakes:
        now_s, stage = heapq.heappop(wakes)
        rank = ranks[stage]
        # A message arrived while the rank computes: it chooses again when it is free.
        if rank.free_s > now_s:
            continue
        op = rank.choose(now_s, weight_s=costs.backward_weight_s[stage], weights=weights)
        for wake in () if op is None else _execute(op, rank, ranks, now_s=now_s, costs=costs):
            heapq.heappush(wakes, wake)
    return tuple(tuple(rank.program) for rank in ranks)


@dataclass(slots=True, kw_only=True)
class _Rank:
    """The progress of a rank, and the arrival times of its messages, as far as they are known."""

    stage: int
    num_microbatches: int
    warmup: int
    max_live: int
    free_s: float = 0.0
    activations_s: list[float] = field(default_factory=list)
    gradients_s: list[float] = field(default_factory=list)
    program: list[Instruction] = field(default_factory=list)
    num_forwards: int = 0
    num_inputs: int = 0
    num_weights: int = 0

    def choose(self, now_s: float, *, weight_s: float, weights: WeightPlacement) -> Op | None:
        """Return the operation to start now, or None."""
        # Messages arrive in the order of microbatches: a position in the list is a microbatch.
        input_s = _next(self.gradients_s, self.num_inputs)
        forward_s = _next(self.activations_s, self.num_forwards)
        if self.num_forwards - self.num_inputs >= self.warmup:
            forward_s = math.inf
        # Memory counts to the backward-weight, depth only to the backward-input.
        is_full = self.num_forwards - self.num_weights >= self.max_live
        has_weights = self.num_weights < self.num_inputs
        if forward_s <= now_s and not is_full:
            return Op.FORWARD
        if forward_s <= now_s and has_weights:
            return Op.BACKWARD_WEIGHT
        if input_s <= now_s:
            return Op.BACKWARD_INPUT
        if not has_weights:
            return None
        next_s = input_s if is_full else min(input_s, forward_s)
        # A weight gradient that ends after the next message would delay what other ranks wait for.
        waits = weights is WeightPlacement.GAPS and next_s < now_s + weight_s
        return None if waits else Op.BACKWARD_WEIGHT


def _next(arrivals_s: list[float], position: int) -> float:
    """Return the arrival time of a message, infinity if it is not known yet."""
    return arrivals_s[position] if position < len(arrivals_s) else math.inf


def _execute(
    op: Op, rank: _Rank, ranks: list[_Rank], *, now_s: float, costs: Costs
) -> list[tuple[float, int]]:
    """Run the next instruction of this kind; return when which ranks have to choose again."""
    stage = rank.stage
    match op:
        case Op.FORWARD:
            rank.program.append(forward(stage, rank.num_forwards))
            rank.num_forwards += 1
            rank.free_s = now_s + costs.forward_s[stage]
            # The last stage computes the loss: its own forward is what its backward waits for.
            if rank is ranks[-1]:
                rank.gradients_s.append(rank.free_s)
                return [(rank.free_s, stage)]
            ranks[stage + 1].activations_s.append(rank.free_s + costs.message_s[stage])
            return [(rank.free_s, stage), (rank.free_s + costs.message_s[stage], stage + 1)]
        case Op.BACKWARD_INPUT:
            rank.program.append(backward_input(stage, rank.num_inputs))
            rank.num_inputs += 1
            rank.free_s = now_s + costs.backward_input_s[stage]
            if stage == 0:
                return [(rank.free_s, stage)]
            ranks[stage - 1].gradients_s.append(rank.free_s + costs.message_s[stage - 1])
            return [(rank.free_s, stage), (rank.free_s + costs.message_s[stage - 1], stage - 1)]
        case _:
            rank.program.append(backward_weight(stage, rank.num_weights))
            rank.num_weights += 1
            rank.free_s = now_s + costs.backward_weight_s[stage]
            return [(rank.free_s, stage)]
