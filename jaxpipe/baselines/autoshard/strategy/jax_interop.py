"""Shardings and meshes as JAX writes them: `PartitionSpec`, `NamedSharding`, `Mesh`."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpipe.baselines.autoshard.strategy.mesh_shape import Axes, Axis, MeshShape
from jaxpipe.baselines.autoshard.strategy.sharding import Sharding
from jaxpipe.errors import PlanError

Device: TypeAlias = Any
"""A `jax.Device`, which pyright does not take as a type."""


def partition_spec(sharding: Sharding) -> PartitionSpec:
    """Return the sharding as JAX writes it.

    >>> tuple(partition_spec(Sharding(((), (Axis.DP, Axis.OP)))))
    (None, ('dp', 'op'))
    """
    return PartitionSpec(*(_entry(dim) for dim in sharding.dims))


def jax_mesh(mesh: MeshShape, devices: Sequence[Device] | None = None) -> Mesh:
    """Return the mesh of these devices (JAX's own, if none are given), row by row.

    Raises:
        PlanError: there are fewer devices.
    """
    devices = jax.devices() if devices is None else devices
    if len(devices) < mesh.num_devices:
        raise PlanError(
            f"`dp` ({mesh.dp}) x `op` ({mesh.op}) must be at most the number of devices, "
            f"{len(devices)}; lower one of them"
        )
    grid = np.asarray(devices[: mesh.num_devices], dtype=object).reshape(mesh.sizes)
    return Mesh(grid, tuple(axis.label for axis in Axis))


def named_sharding(sharding: Sharding, mesh: Mesh) -> NamedSharding:
    """Return the sharding on the devices of a mesh."""
    return NamedSharding(mesh, partition_spec(sharding))


def _entry(dim: Axes) -> str | tuple[str, ...] | None:
    labels = tuple(axis.label for axis in dim)
    return (labels[0] if len(labels) == 1 else labels) if labels else None
