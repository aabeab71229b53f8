"""The interface of a system, and the task that all of them get: sizes, weights, samples, settings.

A task is a folder that the experiment writes: `task.json`, `weights.npz` with the initial weights
under the names of `Stage`, `train.npy` of shape (steps, batch, sequence + 1) and `held_out.npy` of
shape (samples, sequence + 1).
"""

# pyright: reportMissingImports=false

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from experiments.runtime_benchmark.programs.torch_pipeline import Stage, adamw, loss_of

_POLL_S = 0.05
START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one rank reads of the folder of a task."""

    folder: Path
    rank: int
    model: dict[str, Any]
    """The sizes that `Stage` reads."""
    schedule: str
    """How the system trains, by its own name."""
    settings: dict[str, Any]
    """The settings of the system for this schedule, from `systems.toml`."""
    cut: list[int]
    """Layers of each stage, in order."""
    microbatch: int
    addresses: list[str]
    """The address of each rank in the emulated network."""
    learning_rates: list[float]
    """The learning rate of each step."""
    eval_steps: list[int]
    """The steps after which the held-out loss is measured, counted from 1."""

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.addresses)

    def stage(self, layers: range) -> Stage:
        """Return consecutive layers with their initial weights."""
        stage = Stage(self.model, layers)
        with np.load(self.folder / "weights.npz", allow_pickle=False) as weights, torch.no_grad():
            for name, parameter in stage.named_parameters():
                parameter.copy_(torch.from_numpy(weights[_global_name(name, layers)]))
        return stage

    def whole(self) -> Stage:
        """Return the whole model with its initial weights."""
        return self.stage(range(self.model["num_layers"]))

    def shard(self, samples: Tensor) -> Tensor:
        """Return the samples of this rank: equal, consecutive parts of a batch."""
        return samples.chunk(self.num_ranks)[self.rank]

    def wait_for(self, name: str) -> str:
        """Return the text of a file of the folder, as soon as another process has written it.

        Raises:
            TimeoutError: it was not written in time.
        """
        path, deadline_s = self.folder / name, time.monotonic() + START_TIMEOUT_S
        while not path.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{path} was not written within {START_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)
        return path.read_text()

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder, whole: `wait_for` never sees a part of it."""
        part = self.folder / f"{name}.part-{self.rank}"
        part.write_text(text)
        part.rename(self.folder / name)


class Peer(Protocol):
    """A system that trains, one object in each rank."""

    def step(self, samples: Tensor, *, learning_rate: float) -> float | None:
        """Train on a batch of shape (batch, sequence + 1); return the loss of this rank, if any."""
        ...

    def held_out(self, samples: Tensor) -> float | None:
        """Return the mean loss of these samples, or None in a rank that does not know it."""
        ...

    def close(self) -> None:
        """End what the system has started."""
        ...


def read_task(folder: Path, *, rank: int) -> Task:
    """Return the task of a rank."""
    return Task(folder=folder, rank=rank, **json.loads((folder / "task.json").read_text()))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW with the settings of `model.toml`; `set_rate` sets its learning rate."""
    return adamw(model)


def set_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def backward(model: nn.Module, samples: Tensor) -> float:
    """Add the gradients of the mean loss of samples; return the loss."""
    loss = loss_of(model(samples[:, :-1]), samples[:, 1:])
    loss.backward()
    return float(loss.detach())


@torch.no_grad()
def mean_loss(model: nn.Module, samples: Tensor) -> float:
    """Return the mean loss of samples, in parts of eight: their logits fit the cache."""
    losses = [
        float(loss_of(model(part[:, :-1]), part[:, 1:])) * len(part) for part in samples.split(8)
    ]
    return sum(losses) / len(samples)


def all_ranks(task: Task, word: str, *, ranks: Sequence[int] | None = None) -> None:
    """Wait until all ranks have come here.

    Raises:
        TimeoutError: one did not come.
    """
    task.write(f"{word}-{task.rank}", "")
    for rank in range(task.num_ranks) if ranks is None else ranks:
        task.wait_for(f"{word}-{rank}")


def _global_name(name: str, layers: range) -> str:
    """Return the name of a weight in the whole model: blocks are counted from its first layer."""
    words = name.split(".")
    if words[0] == "blocks":
        words[1] = str(layers.start + int(words[1]))
    return ".".join(words)
