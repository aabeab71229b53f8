"""Multi-process JAX with one process per rank, each with its shards of global arrays.

::

    rank 0  ─┐ address of rank 0                    ┌─ device 0, its pieces
    rank 1  ─┼────────────────────► jax.distributed ┼─ device 1, its pieces      one mesh, one step
    rank 2  ─┘ over the transport                   └─ device 2, its pieces

Collectives go over gloo's TCP on CPUs and over NCCL on GPUs, past the transport.
"""

import random
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import jax
import numpy as np
import optax
from jax import Array
from jaxtyping import Key

from jaxpipe.baselines.autoshard.spmd.train_step import LossModel, Tree
from jaxpipe.baselines.autoshard.strategy.jax_interop import Device
from jaxpipe.comm import BROADCAST_TAG, Transport, broadcast_bytes
from jaxpipe.errors import TransportError

_LOOPBACK: Final = "127.0.0.1"
_PORTS: Final = range(20000, 32768)
"""Below the range of ephemeral ports on Linux, so no client socket takes one by chance."""
_MAX_TRIALS: Final = 100


def join(transport: Transport, *, timeout_s: float) -> tuple[Device, ...]:
    """Join all ranks with `jax.distributed`; return the first device of each rank, in order.

    Call it once, before any other use of JAX. If a process dies later, JAX ends the others after
    `timeout_s`.

    Raises:
        DeadlineError: rank 0 did not send its address within `timeout_s`.
        TransportError: JAX could not reach the others within `timeout_s`.
    """
    mine = coordinator_address().encode() if transport.rank == 0 else None
    address = broadcast_bytes(
        transport, mine, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s
    ).decode()
    # Before the first use of a device: a CPU backend that exists keeps its collectives.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    seconds = max(1, round(timeout_s))  # JAX takes whole seconds, and 0 is no time at all
    try:
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=transport.num_ranks,
            process_id=transport.rank,
            # Else JAX reads the local devices from variables of Slurm or mpirun.
            cluster_detection_method="deactivate",
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=seconds,
            shutdown_timeout_seconds=seconds,
        )
    except RuntimeError as error:
        raise TransportError(
            f"rank {transport.rank} cannot join the JAX of rank 0 at {address}: {error}"
        ) from error
    # A host may show several devices to each process: a rank computes on its first.
    firsts: dict[int, Device] = {}
    for device in jax.devices():
        firsts.setdefault(device.process_index, device)
    return tuple(firsts[rank] for rank in range(transport.num_ranks))


def leave() -> None:
    """Leave `jax.distributed`, once all other processes do."""
    jax.distributed.shutdown()


def coordinator_address() -> str:
    """Return an address of this host with a port that is currently free.

    Raises:
        TransportError: none was found.

    >>> host, port = coordinator_address().rsplit(":", 1)
    >>> int(port) in range(20000, 32768)
    True
    """
    try:
        host = socket.gethostbyname(socket.gethostname())
    except OSError:  # a host without a name that others know is alone
        host = _LOOPBACK
    # Random: jobs that start together on one host would try the same ports in the same order.
    for port in random.SystemRandom().sample(_PORTS, _MAX_TRIALS):
        # Free now, but not held: if another process binds it before JAX does, `join` fails.
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return f"{host}:{port}"
    raise TransportError(
        f"cannot find a free port on {host}: tried {_MAX_TRIALS} of {_PORTS.start} to "
        f"{_PORTS.stop - 1}"
    )


def placed_pieces(tree: Any, shardings: Any) -> Any:
    """Return global arrays; each process has the whole tree and places its own shards."""

    def place(leaf: Any, sharding: Any) -> Array:
        array = np.asarray(leaf)
        # Called for the shards of this process alone.
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(place, tree, shardings)


def initial_pieces(
    model: LossModel,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
    shardings: Tree,
) -> Tree:
    """Return the float32 state of `initial_state` as global arrays.

    Besides its own shards, a process never holds more than one whole layer or the two ends.

    Args:
        model: its layers are drawn one by one.
        optimizer: starts from the placed parameters.
        key: what the parameters depend on.
        shardings: of every leaf of the state, as `placed` gives them.
    """
    wanted = shardings["params"]
    ends = _float32(model.init(key, layers=range(0), embed=True, head=True))
    params = placed_pieces(ends, {part: wanted[part] for part in ends})
    params["blocks"] = {
        str(layer): placed_pieces(_layer(model.init, key, layer), wanted["blocks"][str(layer)])
        for layer in range(model.num_layers)
    }
    # Jitted with shardings: moments are made as shards, not whole and then cut.
    start = jax.jit(optimizer.init, out_shardings=shardings["optimizer"])
    return {"params": params, "optimizer": start(params)}


def _layer(init: Callable[..., Tree], key: Key[Array, ""], layer: int) -> Tree:
    drawn = init(key, layers=range(layer, layer + 1), embed=False, head=False)
    return _float32(jax.tree.map(lambda leaf: leaf[0], drawn["blocks"]))


def _float32(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf.astype("float32"), tree)
