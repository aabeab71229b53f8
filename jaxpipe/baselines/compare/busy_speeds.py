"""Speeds of a comparison's ranks while all of them are busy: products, and links of every mesh.

The search for a strategy takes the links over which the step will be timed, whichever they are:
they are measured with the collectives of the step itself, in all groups of an axis at once.

::

    4 ranks, dp 2 x op 2      along op   0 ═ 1   2 ═ 3        two all-reduces at once
                              along dp   0 ═ 2   1 ═ 3        two all-reduces at once

All ranks call this together. Ranks that compute alone would find more memory bandwidth, caches
and cores than they have in a step.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxpipe.baselines.autoshard.spmd.distributed import placed_pieces
from jaxpipe.baselines.autoshard.strategy import Axis, AxisLink, MeshShape, jax_mesh
from jaxpipe.comm import (
    BARRIER_TAG,
    BROADCAST_TAG,
    GATHER_TAG,
    Transport,
    barrier,
    broadcast_bytes,
    gather_bytes,
)
from jaxpipe.topo.units import flops_text

_PRODUCT = 768  # 0.9 GFLOP a product: long enough to time, short enough on one core
_PRODUCTS = 9
_SMALL_FLOATS, _LARGE_FLOATS = 2**4, 2**18
_REDUCTIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BusySpeeds:
    """FLOP/s of the slowest rank, and every mesh of the ranks with its measured links."""

    flops_per_s: float
    meshes: tuple[MeshShape, ...]

    def __str__(self) -> str:
        """Return the speeds in a line.

        >>> link = AxisLink(latency_s=1e-4, bandwidth_bytes_per_s=5e8)
        >>> str(BusySpeeds(flops_per_s=3e10, meshes=(MeshShape(dp=2, op=1, dp_link=link),)))
        '30.0 GFLOP/s a rank; dp 2 x op 1: dp 0.10 ms, 4.00 Gbps'
        """
        meshes = "; ".join(_line(mesh) for mesh in self.meshes)
        return f"{flops_text(self.flops_per_s)} a rank; {meshes}"


def measure_busy_speeds(
    transport: Transport, devices: Sequence[Any], *, timeout_s: float
) -> BusySpeeds:
    """Measure on all ranks at once, which have joined; all return the same speeds.

    Raises:
        DeadlineError: another rank did not come in time.
    """
    together = partial(_slowest, transport, timeout_s=timeout_s)
    product_s = together(_product())
    measured: dict[tuple[tuple[int, ...], ...], AxisLink] = {}
    meshes = []
    for shape in factorisations(transport.num_ranks):
        links = {}
        for axis in shape.real_axes:
            # The same groups occur in several meshes; each is measured once.
            groups = groups_along(shape, axis)
            if groups not in measured:
                measured[groups] = _axis_link(shape, axis, devices, together)
            links[f"{axis.label}_link"] = measured[groups]
        meshes.append(replace(shape, **links))
    return BusySpeeds(flops_per_s=2.0 * _PRODUCT**3 / product_s, meshes=tuple(meshes))


def factorisations(num_ranks: int) -> tuple[MeshShape, ...]:
    """Return every mesh of all ranks, dp the smallest first.

    >>> [(mesh.dp, mesh.op) for mesh in factorisations(6)]
    [(1, 6), (2, 3), (3, 2), (6, 1)]
    """
    sizes = [dp for dp in range(1, num_ranks + 1) if num_ranks % dp == 0]
    return tuple(MeshShape(dp=dp, op=num_ranks // dp) for dp in sizes)


def groups_along(mesh: MeshShape, axis: Axis) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each group along an axis.

    >>> groups_along(MeshShape(dp=2, op=2), Axis.DP), groups_along(MeshShape(dp=2, op=2), Axis.OP)
    (((0, 2), (1, 3)), ((0, 1), (2, 3)))
    """
    numbers = np.arange(mesh.num_devices).reshape(mesh.sizes)
    rows = numbers.T if axis is Axis.DP else numbers
    return tuple(tuple(row) for row in rows.tolist())


def link_of(*, small_s: float, large_s: float, num_bytes: float, size: int) -> AxisLink:
    """Return the link over which a ring all-reduce takes these times: without bytes, and with some.

    The inverse of `collective_s`. In noise the two times may be equal; then all of the time counts
    for the bytes.

    >>> link_of(small_s=0.006, large_s=0.012, num_bytes=4e6, size=4)
    AxisLink(latency_s=0.001, bandwidth_bytes_per_s=1000000000.0)
    """
    count = 2 * (size - 1)
    wire_s = large_s - small_s if large_s > small_s else large_s
    return AxisLink(
        latency_s=small_s / count, bandwidth_bytes_per_s=count * num_bytes / size / wire_s
    )


def _axis_link(
    mesh: MeshShape, axis: Axis, devices: Sequence[Any], together: Callable[..., float]
) -> AxisLink:
    small_s, large_s = (
        together(_all_reduce(mesh, axis, devices, num_floats=number))
        for number in (_SMALL_FLOATS, _LARGE_FLOATS)
    )
    num_bytes = (_LARGE_FLOATS - _SMALL_FLOATS) * np.float32().itemsize
    size = mesh.sizes[axis]
    return link_of(small_s=small_s, large_s=large_s, num_bytes=num_bytes, size=size)


def _product() -> tuple[Callable[[], Any], int]:
    """Return a call that multiplies matrices of float32, and how often it is to be timed."""
    matrix = jnp.ones((_PRODUCT, _PRODUCT), jnp.float32)
    compiled = jax.jit(jnp.matmul).lower(matrix, matrix).compile()
    return partial(compiled, matrix, matrix), _PRODUCTS


def _all_reduce(
    mesh: MeshShape, axis: Axis, devices: Sequence[Any], *, num_floats: int
) -> tuple[Callable[[], Any], int]:
    """Return a call that all-reduces that many floats of each rank along an axis, and how often."""
    grid, spec = jax_mesh(mesh, devices), PartitionSpec(tuple(axis.label for axis in Axis))
    sharding = NamedSharding(grid, spec)
    pieces = placed_pieces(np.ones((mesh.num_devices, num_floats), np.float32), sharding)

    def all_reduced(piece: jax.Array) -> jax.Array:
        return jax.lax.psum(piece, axis.label)

    mapped = jax.shard_map(all_reduced, mesh=grid, in_specs=spec, out_specs=spec, check_vma=False)
    return partial(jax.jit(mapped).lower(pieces).compile(), pieces), _REDUCTIONS


def _slowest(
    transport: Transport, timed: tuple[Callable[[], Any], int], *, timeout_s: float
) -> float:
    """Return the seconds of a call on the slowest rank, all of which call it at once."""
    call, repeats = timed
    # After compilation: ranks of gloo have 30 s to find each other in the first call.
    barrier(transport, tag=BARRIER_TAG, timeout_s=timeout_s)
    jax.block_until_ready(call())
    barrier(transport, tag=BARRIER_TAG, timeout_s=timeout_s)
    seconds: list[float] = []
    for _ in range(repeats):
        begin_s = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - begin_s)
    payload = msgspec.json.encode(median(seconds))
    payloads = gather_bytes(transport, payload, root=0, tag=GATHER_TAG, timeout_s=timeout_s)
    slowest = None
    if payloads is not None:
        slowest = msgspec.json.encode(
            max(msgspec.json.decode(text, type=float) for text in payloads)
        )
    received = broadcast_bytes(transport, slowest, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
    return msgspec.json.decode(received, type=float)


def _line(mesh: MeshShape) -> str:
    links = {Axis.DP: mesh.dp_link, Axis.OP: mesh.op_link}
    parts = [
        f"{axis.label} {1e3 * links[axis].latency_s:.2f} ms, "
        f"{8e-9 * links[axis].bandwidth_bytes_per_s:.2f} Gbps"
        for axis in mesh.real_axes
    ]
    return f"dp {mesh.dp} x op {mesh.op}: {', '.join(parts)}"
