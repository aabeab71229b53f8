"""LocalSGD and DiLoCo of torchft over gloo, with a quorum by its lighthouse.

The lighthouse is a process of its own, on the host of rank 0. Each rank is a replica group of one
rank, as in torchft's example of DiLoCo.
"""

# pyright: reportMissingImports=false

import os
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD

from experiments.over_the_wire.peers.peer import (
    START_TIMEOUT_S,
    Task,
    backward,
    mean_loss,
    optimizer_of,
    set_rate,
)

LIGHTHOUSE_PORT = 29510


def fragments(model: Any, *, count: int) -> list[nn.Module]:
    """Return the model in parts of equally many layers, with the embedding in the first."""
    if count == 1:
        return [model]
    blocks = list(model.blocks)
    parts = [
        blocks[len(blocks) * i // count : len(blocks) * (i + 1) // count] for i in range(count)
    ]
    first = [model.tokens, model.positions, model.norm]
    return [nn.ModuleList([*(first if i == 0 else []), *part]) for i, part in enumerate(parts)]


class TorchftReplica:
    """A replica that trains alone, and meets the others every `every` steps."""

    def __init__(self, task: Task) -> None:
        self._task, self._model = task, task.whole()
        self._optimizer = optimizer_of(self._model)
        address, settings = task.addresses[task.rank], task.settings
        self._store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        timeout = timedelta(seconds=settings["timeout_s"])
        # The manager's own server is reached by the others under this address.
        self._manager = Manager(
            pg=ProcessGroupGloo(timeout=timeout),
            min_replica_size=1,
            # DiLoCo asks for it; LocalSGD waits for the quorum as well.
            use_async_quorum=False,
            # All ranks have read the same weights.
            init_sync=False,
            load_state_dict=self._load,
            state_dict=self._state,
            replica_id=f"rank_{task.rank}",
            store_addr=address,
            store_port=self._store.port,
            rank=0,
            world_size=1,
            lighthouse_addr=f"http://{task.addresses[0]}:{LIGHTHOUSE_PORT}",
            hostname=address,
            timeout=timeout,
            quorum_timeout=timedelta(seconds=START_TIMEOUT_S),
            connect_timeout=timedelta(seconds=START_TIMEOUT_S),
        )
        self._loop = self._open_loop()
        self._loop.__enter__()

    def _open_loop(self) -> AbstractContextManager[Any]:
        settings, every = self._task.settings, self._task.settings["every"]
        if self._task.schedule == "local-sgd":
            return LocalSGD(self._manager, self._model, self._optimizer, sync_every=every)
        self._outer = torch.optim.SGD(
            self._model.parameters(),
            lr=settings["outer_learning_rate"],
            momentum=settings["outer_momentum"],
            nesterov=settings["outer_momentum"] > 0,
        )
        return DiLoCo(
            self._manager,
            fragments(self._model, count=settings["fragments"]),
            self._optimizer,
            self._outer,
            sync_every=every,
            fragment_sync_delay=settings["delay"],
            fragment_update_alpha=settings["local_fraction"],
            use_bucketization=settings["use_bucketization"],
        )

    def _state(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def _load(self, state: dict[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def step(self, samples: Tensor, *, learning_rate: float) -> float:
        """Train on the samples of this rank; every few steps, meet the other ranks."""
        set_rate(self._optimizer, learning_rate)
        self._optimizer.zero_grad()
        loss = backward(self._model, self._task.shard(samples))
        self._optimizer.step()
        return loss

    def held_out(self, samples: Tensor) -> float | None:
        """Return the loss of rank 0, equal to that of the others after a meeting."""
        return mean_loss(self._model, samples) if self._task.rank == 0 else None

    def close(self) -> None:
        """End the manager, its server and its threads."""
        self._loop.__exit__(None, None, None)
        self._manager.shutdown(wait=False)
        # Threads of torchft that wait for a quorum outlive their manager.
        os._exit(0)


def open_peer(task: Task) -> TorchftReplica:
    """Return the replica of a rank."""
    return TorchftReplica(task)
