"""The layouts of an array on a mesh, and the cost of resharding between them.

Layouts are numbered: an array of a shape can have those shardings that divide it evenly. One step
of a resharding is

- a slice, which moves nothing: an axis comes to split a dim, as its innermost;
- an all-gather: the innermost axes of a dim split it no more;
- an all-to-all: the innermost axis of a dim comes to split another dim, as its innermost;

and a resharding is the sequence of steps that takes least (by Floyd's algorithm over all layouts).
The sequence depends on the mesh alone, so the search and the executor agree.

Source: Zheng et al., "Alpa", OSDI 2022, table 2, of which this takes the cheapest composition.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations, product
from math import isfinite

import numpy as np

from jaxpipe.baselines.autoshard.graph import ArrayType
from jaxpipe.baselines.autoshard.strategy import (
    Axes,
    Axis,
    AxisLink,
    Collective,
    CollectiveKind,
    MeshShape,
    Sharding,
    collective_s,
    latency_s,
    wire_s,
)

_LAUNCH_S = 5e-6  # as `intra_op.Machine`: of equal bytes, fewer collectives
_UNKNOWN = AxisLink(bandwidth_bytes_per_s=1e9)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layouts:
    """The shardings that arrays of one shape can have, by number, and reshardings between them.

    `wire_s[a, b]` are the seconds that grow with bytes, `latency_s[a, b]` the others; `after[a, b]`
    is the layout after the first step, and `cost[a, b]` what decides between sequences.
    """

    array: ArrayType
    mesh: MeshShape
    shardings: tuple[Sharding, ...]
    number: dict[Sharding, int]
    num_bytes: np.ndarray
    wire_s: np.ndarray
    latency_s: np.ndarray
    after: np.ndarray
    cost: np.ndarray

    def path(self, source: int, target: int) -> Iterator[Collective]:
        """Yield the collectives of a resharding, in order; slices are none."""
        while source != target:
            step = int(self.after[source, target])
            collective = self.collective(source, step)
            if collective is not None:
                yield collective
            source = step

    def collective(self, source: int, step: int) -> Collective | None:
        """Return the collective of one step; None for a slice."""
        return _step(self.shardings[source], self.shardings[step], self.array, self.mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutBook:
    """Layouts of all shapes on one mesh, each made once; `launch_s` starts one collective."""

    mesh: MeshShape
    launch_s: float = 0.0
    _made: dict[ArrayType, Layouts] = field(default_factory=dict)

    def of(self, array: ArrayType) -> Layouts:
        """Return the layouts of arrays like this."""
        if array not in self._made:
            self._made[array] = _layouts(array, self.mesh, self.launch_s)
        return self._made[array]


def shardings_of(shape: tuple[int, ...], mesh: MeshShape) -> tuple[Sharding, ...]:
    """Return all shardings that divide the shape evenly, the replicated one first.

    >>> [str(each) for each in shardings_of((4, 3), MeshShape(dp=2, op=2))]
    ['RR', 'S0R', 'S1R', 'S01R', 'S10R']
    """
    shardings: dict[Sharding, None] = {}
    axes = mesh.real_axes
    for places in product((None, *range(len(shape))), repeat=len(axes)):
        # S01 and S10 place different rows on a device: an order of axes is a layout of its own.
        for order in permutations(range(len(axes))):
            dims: list[Axes] = [()] * len(shape)
            for turn in order:
                dim = places[turn]
                if dim is not None:
                    dims[dim] = (*dims[dim], axes[turn])
            sharding = Sharding(tuple(dims))
            if sharding.fits(shape, mesh):
                shardings[sharding] = None
    # The replicated one, without axes, becomes number 0.
    return tuple(sorted(shardings, key=lambda sharding: (len(sharding.axes), sharding.axes)))


def _layouts(array: ArrayType, mesh: MeshShape, launch_s: float) -> Layouts:
    shardings, judged = shardings_of(array.shape, mesh), _judged(mesh)
    number = {sharding: index for index, sharding in enumerate(shardings)}
    size = len(shardings)
    wire, latency = np.full((size, size), np.inf), np.full((size, size), np.inf)
    cost = np.full((size, size), np.inf)
    after = np.tile(np.arange(size), (size, 1))
    for table in (wire, latency, cost):
        np.fill_diagonal(table, 0.0)
    for index, sharding in enumerate(shardings):
        for other in _neighbours(sharding):
            if other not in number:  # it does not divide, or the axis has one device
                continue
            step = _step(sharding, other, array, mesh)
            target = number[other]
            # As for a slice; a collective adds its cost below.
            wire[index, target] = latency[index, target] = cost[index, target] = 0.0
            if step is not None:
                wire[index, target] = wire_s(step.kind, step.axes, mesh, num_bytes=step.num_bytes)
                latency[index, target] = latency_s(step.kind, step.axes, mesh, launch_s=launch_s)
                cost[index, target] = collective_s(step, judged, launch_s=_LAUNCH_S)
    # Floyd: `middle` must be the outer loop, so that paths through earlier ones are final.
    for middle in range(size):
        through = cost[:, middle, None] + cost[None, middle]
        # 1e-15 s: sums that differ by rounding alone must not replace a path.
        better = through < cost - 1e-15
        cost = np.where(better, through, cost)
        wire = np.where(better, wire[:, middle, None] + wire[None, middle], wire)
        latency = np.where(better, latency[:, middle, None] + latency[None, middle], latency)
        after = np.where(better, after[:, middle, None], after)
    return Layouts(
        array=array,
        mesh=mesh,
        shardings=shardings,
        number=number,
        num_bytes=np.array([s.local_bytes(array.shape, array.itemsize, mesh) for s in shardings]),
        wire_s=wire,
        latency_s=latency,
        after=after,
        cost=cost,
    )


def _judged(mesh: MeshShape) -> MeshShape:
    """Return a mesh whose links have a bandwidth: over free ones any detour would be the best."""
    links = [link if isfinite(link.bandwidth_bytes_per_s) else _UNKNOWN for link in mesh.links]
    return MeshShape(dp=mesh.dp, op=mesh.op, dp_link=links[0], op_link=links[1])


def _neighbours(sharding: Sharding) -> Iterator[Sharding]:
    """Yield the layouts one step away."""
    rank = len(sharding.dims)
    for axis in Axis:  # also axes with one device: `number` refuses those
        if axis not in sharding.axes:
            for dim in range(rank):
                yield _with(sharding, {dim: (*sharding.dims[dim], axis)})
    for dim, axes in enumerate(sharding.dims):
        for num_axes in range(len(axes)):
            # The innermost `len(axes) - kept` together: one gather over both axes, not one each.
            yield _with(sharding, {dim: axes[:num_axes]})
        for other in range(rank):
            if axes and other != dim:
                moved = (*sharding.dims[other], axes[-1])
                yield _with(sharding, {dim: axes[:-1], other: moved})


def _with(sharding: Sharding, changes: dict[int, Axes]) -> Sharding:
    return Sharding(tuple(changes.get(dim, axes) for dim, axes in enumerate(sharding.dims)))


def _step(
    source: Sharding, target: Sharding, array: ArrayType, mesh: MeshShape
) -> Collective | None:
    """Return the collective of one step, or None for a slice."""
    lost = [
        (dim, before[len(after) :])
        for dim, (before, after) in enumerate(zip(source.dims, target.dims, strict=True))
        if len(before) > len(after)
    ]
    if not lost:
        return None
    ((_, axes),) = lost
    # As many axes before and after: one has changed its dim.
    moved = len(source.axes) == len(target.axes)
    return Collective(
        kind=CollectiveKind.ALL_TO_ALL if moved else CollectiveKind.ALL_GATHER,
        num_bytes=target.local_bytes(array.shape, array.itemsize, mesh),
        axes=axes,
    )
