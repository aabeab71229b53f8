"""hivemind's optimizer: peers that find each other in a DHT, and average at times.

Schedules: `gradients`, hivemind's default, which averages gradients once all peers together have
`target_batch` samples; and `local-updates`, in which each peer takes its own steps, and parameters
are averaged after as many samples.
"""

# pyright: reportMissingImports=false

import json
import os

import hivemind
from hivemind.compression import Float16Compression, NoCompression
from torch import Tensor

from experiments.over_the_wire.peers.peer import (
    START_TIMEOUT_S,
    Task,
    backward,
    mean_loss,
    optimizer_of,
    set_rate,
)

_COMPRESSION = {"none": NoCompression, "float16": Float16Compression}


class HivemindPeer:
    """One peer: a DHT node, a model, and an optimizer that averages with the others."""

    def __init__(self, task: Task) -> None:
        self._task, self._model = task, task.whole()
        self._dht = self._join()
        settings = task.settings
        local = task.schedule == "local-updates"
        compression = _COMPRESSION[settings["compression"]]
        optimizer = optimizer_of(self._model)
        self._optimizer = hivemind.Optimizer(
            dht=self._dht,
            run_id="over_the_wire",
            optimizer=optimizer,
            target_batch_size=settings["target_batch"],
            use_local_updates=local,
            delay_state_averaging=settings["delay_state_averaging"],
            grad_compression=compression(),
            state_averaging_compression=compression(),
            matchmaking_time=settings["matchmaking_s"],
            averaging_timeout=settings["averaging_timeout_s"],
            tracker_opts={
                "min_refresh_period": settings["refresh_s"],
                "default_refresh_period": settings["refresh_s"],
            },
            # By default it takes a step with gradients of 0, which AdamW would count.
            averager_opts={"initialize_optimizer": False},
            verbose=True,
        )

    def _join(self) -> hivemind.DHT:
        """Start a node of the DHT; that of rank 0 is the one that the others know."""
        first = self._task.rank == 0
        known = [] if first else json.loads(self._task.wait_for("peers.json"))
        address = self._task.addresses[self._task.rank]
        dht = hivemind.DHT(
            initial_peers=known,
            host_maddrs=[f"/ip4/{address}/tcp/0"],
            start=True,
            startup_timeout=START_TIMEOUT_S,
        )
        if first:
            self._task.write("peers.json", json.dumps([str(a) for a in dht.get_visible_maddrs()]))
        return dht

    def step(self, samples: Tensor, *, learning_rate: float) -> float:
        """Train on the samples of this peer."""
        mine = self._task.shard(samples)
        # The optimizer inside: hivemind's `param_groups` are copies.
        set_rate(self._optimizer.opt, learning_rate)
        self._optimizer.zero_grad()
        loss = backward(self._model, mine)
        self._optimizer.step(batch_size=len(mine))
        return loss

    def held_out(self, samples: Tensor) -> float | None:
        """Return the loss of rank 0."""
        return mean_loss(self._model, samples) if self._task.rank == 0 else None

    def close(self) -> None:
        """Leave the others."""
        self._optimizer.shutdown()
        self._dht.shutdown()
        os._exit(0)


def open_peer(task: Task) -> HivemindPeer:
    """Return the peer of a rank."""
    return HivemindPeer(task)
