"""One process per rank: all of them become one JAX, and hold their own pieces of global arrays.

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

from jaxpipe.autoshard.spmd.train_step import StepModel, Tree
from jaxpipe.autoshard.strategy.jax_interop import Device
from jaxpipe.comm import BROADCAST_TAG, Transport, broadcast_bytes
from jaxpipe.errors import TransportError

_LOOPBACK: Final = "127.0.0.1"
_PORTS: Final = range(20000, 32768)
"""Below those that Linux gives to whoever asks for any: nobody takes one of them by chance."""
_MAX_TRIALS: Final = 100


def join(transport: Transport, *, timeout_s: float) -> tuple[Device, ...]:
    """Make the processes of all ranks one JAX; return the first device of each rank, in order.

    Call it before anything else of JAX runs, once. If a process dies later, the others are ended
    after `timeout_s`; so is what waits for it.

    Raises:
        DeadlineError: rank 0 did not say its address within `timeout_s`.
        TransportError: JAX could not reach the others within `timeout_s`.
    """
    mine = coordinator_address().encode() if transport.rank == 0 else None
    address = broadcast_bytes(
        transport, mine, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s
    ).decode()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    seconds = max(1, round(timeout_s))
    try:
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=transport.num_ranks,
            process_id=transport.rank,
            cluster_detection_method="deactivate",
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=seconds,
            shutdown_timeout_seconds=seconds,
        )
    except RuntimeError as error:
        raise TransportError(
            f"rank {transport.rank} cannot join the JAX of rank 0 at {address}: {error}"
        ) from error
    firsts: dict[int, Device] = {}
    for device in jax.devices():
        firsts.setdefault(device.process_index, device)
    return tuple(firsts[rank] for rank in range(transport.num_ranks))


def leave() -> None:
    """End this process's part, after all others have ended theirs."""
    jax.distributed.shutdown()


def coordinator_address() -> str:
    """Return an address of this host, by its name, with a port that is free now.

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
    for port in random.SystemRandom().sample(_PORTS, _MAX_TRIALS):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return f"{host}:{port}"
    raise TransportError(
        f"no port of {_PORTS.start} to {_PORTS.stop - 1} is free on {host}, of {_MAX_TRIALS} tried"
    )


def placed_pieces(tree: Any, shardings: Any) -> Any:
    """Return global arrays of which each process places its own pieces; all have the whole tree."""

    def place(leaf: Any, sharding: Any) -> Array:
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(place, tree, shardings)


def initial_pieces(
    model: StepModel,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
    shardings: Tree,
) -> Tree:
    """Return the float32 state of `initial_state` as global arrays.

    No process ever holds more than its own pieces and one layer, or the two ends, whole.

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
    start = jax.jit(optimizer.init, out_shardings=shardings["optimizer"])
    return {"params": params, "optimizer": start(params)}


def _layer(init: Callable[..., Tree], key: Key[Array, ""], layer: int) -> Tree:
    drawn = init(key, layers=range(layer, layer + 1), embed=False, head=False)
    return _float32(jax.tree.map(lambda leaf: leaf[0], drawn["blocks"]))


def _float32(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf.astype("float32"), tree)
