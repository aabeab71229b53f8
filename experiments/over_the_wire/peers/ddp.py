"""`DistributedDataParallel` of torch over gloo: an all-reduce of all gradients in each step."""

# pyright: reportMissingImports=false

import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from experiments.over_the_wire.peers.peer import (
    Task,
    backward,
    mean_loss,
    optimizer_of,
    set_rate,
)


def open_group(task: Task) -> None:
    """Join all ranks over gloo; the file for their addresses is on the disk that they share."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{task.folder}/store",
        rank=task.rank,
        world_size=task.num_ranks,
    )


class Ddp:
    """A replica in each rank. Buckets have the default size, 25 MiB, and overlap the backward."""

    def __init__(self, task: Task) -> None:
        open_group(task)
        self._task, self._model = task, task.whole()
        self._replica = DistributedDataParallel(self._model)
        self._optimizer = optimizer_of(self._model)
        if (compress := task.settings.get("compress")) is not None:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            hook = getattr(default_hooks, f"{compress}_compress_hook")
            self._replica.register_comm_hook(None, hook)

    def step(self, samples: Tensor, *, learning_rate: float) -> float:
        """Train on the samples of this rank; gradients are averaged."""
        set_rate(self._optimizer, learning_rate)
        self._optimizer.zero_grad()
        loss = backward(self._replica, self._task.shard(samples))
        self._optimizer.step()
        return loss

    def held_out(self, samples: Tensor) -> float | None:
        """Return the loss, in rank 0."""
        return mean_loss(self._model, samples) if self._task.rank == 0 else None

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def open_peer(task: Task) -> Ddp:
    """Return the replica of a rank."""
    return Ddp(task)
