"""`torch.distributed.pipelining` over gloo: schedules of torch, and those of a file (torch-csv)."""

# pyright: reportMissingImports=false

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from experiments.over_the_wire.peers.ddp import open_group
from experiments.over_the_wire.peers.peer import Task, optimizer_of, set_rate
from experiments.runtime_benchmark.programs.torch_pipeline import loss_of

_ONE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_TWO_STAGES = {
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "interleaved-zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


def ranks_of_stages(schedule: str, *, num_ranks: int, num_stages: int) -> list[int]:
    """Return the rank of each stage: in turns, or, for `zbv`, there and back: 0 1 1 0."""
    turns = [stage % num_ranks for stage in range(num_stages)]
    if schedule == "zbv":
        return [r if s < num_ranks else num_ranks - 1 - r for s, r in enumerate(turns)]
    return turns


class Pipeline:
    """The stages of a rank and their schedule."""

    def __init__(self, task: Task) -> None:
        open_group(task)
        self._task, cut = task, task.cut
        self._ranks = ranks_of_stages(task.schedule, num_ranks=task.num_ranks, num_stages=len(cut))
        self._stages = {
            number: task.stage(range(sum(cut[:number]), sum(cut[: number + 1])))
            for number, rank in enumerate(self._ranks)
            if rank == task.rank
        }
        self._optimizer = optimizer_of(nn.ModuleList(self._stages.values()))
        ends = sorted({self._ranks[0], self._ranks[-1]})
        # All ranks make a group together, also those that are not in it.
        self._ends = dist.new_group(ends) if len(ends) > 1 else None
        # Made at the first step: the number of microbatches follows from the batch.
        self._schedule: Any = None

    def step(self, samples: Tensor, *, learning_rate: float) -> float | None:
        """Train on the batch; the rank of the last stage returns the loss."""
        if self._schedule is None:
            self._schedule = self._make_schedule(len(samples) // self._task.microbatch)
        set_rate(self._optimizer, learning_rate)
        self._optimizer.zero_grad()
        losses: list[Tensor] = []
        inputs = (samples[:, :-1],) if 0 in self._stages else ()
        if self._has_last:
            targets = samples[:, 1:].contiguous()
            self._schedule.step(*inputs, target=targets, losses=losses, return_outputs=False)
        else:
            self._schedule.step(*inputs)
        self._sum_tied()
        self._optimizer.step()
        return float(torch.stack(losses).mean()) if losses else None

    @torch.no_grad()
    def held_out(self, samples: Tensor) -> float | None:
        """Return the loss, in the rank of the last stage: stage after stage, without a schedule."""
        hidden = samples[:, :-1]
        for number, rank in enumerate(self._ranks):
            if rank != self._task.rank:
                continue
            if number and self._ranks[number - 1] != rank:
                hidden = torch.empty(*samples[:, :-1].shape, self._task.model["dim"])
                dist.recv(hidden, self._ranks[number - 1])
            hidden = self._stages[number](hidden)
            if number + 1 < len(self._ranks) and self._ranks[number + 1] != rank:
                dist.send(hidden, self._ranks[number + 1])
        return float(loss_of(hidden, samples[:, 1:])) if self._has_last else None

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()

    @property
    def _has_last(self) -> bool:
        return len(self._ranks) - 1 in self._stages

    def _sum_tied(self) -> None:
        """Sum the gradients of the embedding, which the first and the last stage hold."""
        tables = [s.tokens.weight for s in self._stages.values() if s.is_first or s.is_last]
        if not tables:
            return
        total = torch.stack([table.grad for table in tables]).sum(0)
        if self._ends is not None:
            dist.all_reduce(total, group=self._ends)
        for table in tables:
            table.grad.copy_(total)

    def _make_schedule(self, num_microbatches: int) -> Any:
        name, device, count = self._task.schedule, torch.device("cpu"), len(self._ranks)
        stages = [PipelineStage(s, n, count, device) for n, s in self._stages.items()]
        if name in _ONE_STAGE:
            return _ONE_STAGE[name](stages[0], num_microbatches, loss_fn=loss_of)
        if name in _TWO_STAGES:
            return _TWO_STAGES[name](stages, num_microbatches, loss_fn=loss_of)
        schedule = _PipelineScheduleRuntime(stages, num_microbatches, loss_fn=loss_of)
        schedule._load_csv(str(Path(self._task.settings["file"])))
        return schedule


def open_peer(task: Task) -> Pipeline:
    """Return the stages of a rank."""
    return Pipeline(task)
