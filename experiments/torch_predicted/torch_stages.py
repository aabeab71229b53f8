"""Seconds of the stages of `torch.distributed.pipelining`, measured while it trains.

    python -m experiments.torch_predicted.torch_stages --rank R --num-ranks N FOLDER

It needs nothing but PyTorch. The task in FOLDER is that of `torch_pipeline`, with `schedules` in
addition: files of compute instructions, one with whole and one with split backwards. Computes are
timed where the schedule calls them, in processor seconds, so without the waits for messages. Rank 0
writes `result.json`, the `stages` of a profile.
"""

# pyright: reportMissingImports=false

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from experiments.runtime_benchmark.programs.torch_pipeline import Stage, adamw, loss_of

_STEPS, _WARM_UP = 8, 2
_KINDS = ("forward_s", "backward_s", "backward_input_s", "backward_weight_s", "update_s")


class Times:
    """The seconds of calls by kind, kept while `counts`."""

    def __init__(self) -> None:
        self.counts = False
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def timed(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call, timed; a backward in halves is of another kind than a whole one."""

        def measure(*words: Any, **named: Any) -> Any:
            name = kind if named.get("full_backward", True) else "backward_input_s"
            # Of this thread: other work on its core does not count.
            begin_s = time.thread_time()
            result = call(*words, **named)
            if self.counts:
                self.seconds[name].append(time.thread_time() - begin_s)
            return result

        return measure

    def medians(self) -> list[float]:
        """Return the median seconds of each kind; the loss is computed behind a forward."""
        seconds = {kind: median(all_s) for kind, all_s in self.seconds.items()}
        seconds["forward_s"] += seconds.get("loss_s", 0.0)
        return [seconds[kind] for kind in _KINDS]


def measure_stage(task: dict[str, Any], *, rank: int, num_ranks: int) -> list[float]:
    """Train with each schedule, and return the median seconds of this rank's stage by kind."""
    cut, times = task["plan"]["cut"], Times()
    layers = range(sum(cut[:rank]), sum(cut[: rank + 1]))
    num_microbatches = task["batch"] // task["plan"]["microbatch"]
    for path in task["schedules"]:
        stage = Stage(task["model"], layers)
        part = PipelineStage(stage, rank, num_ranks, torch.device("cpu"))
        loss = times.timed("loss_s", loss_of)
        schedule = _PipelineScheduleRuntime([part], num_microbatches, loss_fn=loss)
        schedule._load_csv(path)
        optimizer = adamw(stage)
        # Attributes of an object hide the methods of its class.
        for name, kind in (
            ("forward_one_chunk", "forward_s"),
            ("backward_one_chunk", "backward_s"),
            ("backward_weight_one_chunk", "backward_weight_s"),
        ):
            setattr(part, name, times.timed(kind, getattr(part, name)))
        update = times.timed("update_s", optimizer.step)
        for number in range(_STEPS):
            times.counts = number >= _WARM_UP
            optimizer.zero_grad()
            step(task, stage, schedule)
            update()
    return times.medians()


def step(task: dict[str, Any], stage: Stage, schedule: Any) -> None:
    """Compute the gradients of a batch of random tokens."""
    shape = (task["batch"], task["model"]["sequence"] + 1)
    tokens = torch.randint(task["model"]["vocabulary"], shape)
    inputs = (tokens[:, :-1],) if stage.is_first else ()
    if stage.is_last:
        schedule.step(*inputs, target=tokens[:, 1:], losses=[], return_outputs=False)
    else:
        schedule.step(*inputs)


def main() -> None:
    """Measure as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--num-ranks", type=int, required=True)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[given.rank]})
    torch.set_num_threads(1)
    task = json.loads((given.folder / "task.json").read_text())
    dist.init_process_group(
        "gloo",
        init_method=f"file://{given.folder}/store",
        rank=given.rank,
        world_size=given.num_ranks,
    )
    own = torch.tensor(measure_stage(task, rank=given.rank, num_ranks=given.num_ranks))
    rows = [torch.empty_like(own) for _ in range(given.num_ranks)]
    dist.all_gather(rows, own)
    dist.destroy_process_group()
    if given.rank == 0:
        stages = [
            {"layers": size, **dict(zip(_KINDS, row.tolist(), strict=True))}
            for size, row in zip(task["plan"]["cut"], rows, strict=True)
        ]
        (given.folder / "result.json").write_text(json.dumps(stages))


if __name__ == "__main__":
    main()
