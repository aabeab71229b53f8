"""The same GPT trained by `torch.distributed.pipelining` over gloo, with one thread per rank.

    python torch_pipeline.py --rank R --num-ranks N FOLDER

It needs nothing but PyTorch, and runs in an environment of its own. FOLDER has `task.json`, and
rank 0 writes `result.json` there. With one rank it trains without a pipeline, one microbatch at a
time. Pre-norm blocks, GELU in its tanh form, causal `scaled_dot_product_attention`, a tied head,
AdamW in its fused form, float32. Unlike jaxpipe it does not clip gradients,
which saves it some work.
"""

# pyright: reportMissingImports=false

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn import functional

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Block(nn.Module):
    """One layer."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.project = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention and MLP, each added to the residual stream."""
        batch, seq, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, seq, 3, self.num_heads, dim // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, seq, dim))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Stage(nn.Module):
    """Consecutive layers, with the embedding if first and the head if last."""

    def __init__(self, model: dict[str, Any], layers: range):
        super().__init__()
        dim, vocabulary = model["dim"], model["vocabulary"]
        self.is_first, self.is_last = layers.start == 0, layers.stop == model["num_layers"]
        if self.is_first or self.is_last:
            self.tokens = nn.Embedding(vocabulary, dim)
        if self.is_first:
            self.positions = nn.Embedding(model["sequence"], dim)
        self.blocks = nn.ModuleList(Block(dim, model["num_heads"]) for _ in layers)
        if self.is_last:
            self.norm = nn.LayerNorm(dim)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the stage: activations, or logits."""
        if self.is_first:
            x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight) if self.is_last else x


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(stage: Stage) -> torch.optim.Optimizer:
    """Return the optimizer, with weight decay on matrices only."""
    matrices = [p for p in stage.parameters() if p.ndim > 1]
    others = [p for p in stage.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)


def train_alone(task: dict[str, Any]) -> dict[str, Any]:
    """Train on one core, gradients accumulated over microbatches."""
    stage = Stage(task["model"], range(task["model"]["num_layers"]))
    optimizer, num_microbatches = adamw(stage), task["batch"] // task["plan"]["microbatch"]

    def step(tokens: Tensor) -> float:
        optimizer.zero_grad()
        total = 0.0
        for part in tokens.chunk(num_microbatches):
            loss = loss_of(stage(part[:, :-1]), part[:, 1:]) / num_microbatches
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    return measured(task, step)


def schedule_of(name: str, stage: PipelineStage, num_microbatches: int) -> Any:
    """Return a schedule of torch by its name, or that of a file of compute instructions."""
    if name in _SCHEDULES:
        return _SCHEDULES[name](stage, n_microbatches=num_microbatches, loss_fn=loss_of)
    schedule = _PipelineScheduleRuntime([stage], num_microbatches, loss_fn=loss_of)
    schedule._load_csv(name)
    return schedule


def train_in_pipeline(task: dict[str, Any], *, rank: int, num_ranks: int) -> dict[str, Any]:
    """Train as one stage of a pipeline."""
    cut = task["plan"]["cut"]
    start = sum(cut[:rank])
    stage = Stage(task["model"], range(start, start + cut[rank]))
    pipeline_stage = PipelineStage(stage, rank, num_ranks, torch.device("cpu"))
    num_microbatches = task["batch"] // task["plan"]["microbatch"]
    schedule = schedule_of(task["plan"]["schedule"], pipeline_stage, num_microbatches)
    optimizer = adamw(stage)

    def step(tokens: Tensor) -> float:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        inputs = (tokens[:, :-1],) if stage.is_first else ()
        if stage.is_last:
            schedule.step(*inputs, target=tokens[:, 1:], losses=losses, return_outputs=False)
        else:
            schedule.step(*inputs)
        if stage.is_first or stage.is_last:  # tied embedding; of two ranks, both
            dist.all_reduce(stage.tokens.weight.grad)
        optimizer.step()
        return float(torch.stack(losses).mean()) if losses else 0.0

    return measured(task, step)


def measured(task: dict[str, Any], step: Any) -> dict[str, Any]:
    """Train, and return the time and loss of each step."""
    model, generator = task["model"], torch.Generator().manual_seed(0)
    step_s, cpu_s, losses = [], [], []
    for _ in range(task["steps"]):
        shape = (task["batch"], model["sequence"] + 1)
        tokens = torch.randint(model["vocabulary"], shape, generator=generator)
        if dist.is_initialized():
            dist.barrier()
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        loss = torch.tensor(step(tokens))
        step_s.append(time.perf_counter() - begin_s)
        cpu_s.append(time.process_time() - begin_cpu_s)
        if dist.is_initialized():
            dist.all_reduce(loss)
        losses.append(float(loss))
    return {"step_s": step_s, "cpu_s": cpu_s, "losses": losses, "torch": torch.__version__}


def main() -> None:
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--num-ranks", type=int, required=True)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[given.rank]})
    torch.set_num_threads(1)
    task = json.loads((given.folder / "task.json").read_text())
    if given.num_ranks == 1:
        result = train_alone(task)
    else:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{given.folder}/store",
            rank=given.rank,
            world_size=given.num_ranks,
        )
        result = train_in_pipeline(task, rank=given.rank, num_ranks=given.num_ranks)
        dist.destroy_process_group()
    if given.rank == 0:
        (given.folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
