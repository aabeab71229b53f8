"""A sharding: the mesh axes that split each dim of an array.

Written as in Alpa: a dim is R where it is whole on every device, S0 where the axis dp splits it, S1
where op does, S01 where both do and dp is the outer::

    S0R    rows over dp, columns whole       RS1    columns over op
    S01R   rows over all devices             RR     replicated            "-"   a scalar

Source: Zheng et al., "Alpa", OSDI 2022, section 4.1.
"""

import re
from dataclasses import dataclass
from math import prod

from jaxpipe.baselines.autoshard.strategy.mesh_shape import Axes, Axis, MeshShape
from jaxpipe.errors import PlanError

_SCALAR = "-"
_DIM = re.compile(r"R|S([01]+)")


@dataclass(frozen=True, slots=True)
class Sharding:
    """The axes that split each dim, outermost first.

    >>> sharding = Sharding(((Axis.DP,), ()))
    >>> str(sharding), sharding == parse_sharding("S0R"), sharding.axes
    ('S0R', True, (<Axis.DP: 0>,))

    Raises:
        PlanError: an axis splits two dims.
    """

    dims: tuple[Axes, ...]

    def __post_init__(self) -> None:
        axes = [axis for dim in self.dims for axis in dim]
        # A device would then hold the diagonal blocks alone, and the rest would be on none.
        if len(set(axes)) != len(axes):
            raise PlanError(
                f"`sharding` ({self}) has an axis twice: an axis splits one dim; make one of them R"
            )

    def __str__(self) -> str:
        if not self.dims:
            return _SCALAR
        return "".join("S" + "".join(str(int(a)) for a in dim) if dim else "R" for dim in self.dims)

    @property
    def axes(self) -> Axes:
        """The axes that split some dim, in the order of the mesh."""
        return tuple(sorted(axis for dim in self.dims for axis in dim))

    def split_dim(self, axis: Axis) -> int | None:
        """Return the dim that this axis splits, if any."""
        return next((number for number, dim in enumerate(self.dims) if axis in dim), None)

    def fits(self, shape: tuple[int, ...], mesh: MeshShape) -> bool:
        """Return whether each dim divides evenly among its devices."""
        return len(shape) == len(self.dims) and all(
            size % mesh.size(dim) == 0 for size, dim in zip(shape, self.dims, strict=True)
        )

    def local_shape(self, shape: tuple[int, ...], mesh: MeshShape) -> tuple[int, ...]:
        """Return the shape of the piece that each device holds.

        >>> parse_sharding("RS01").local_shape((2, 16), MeshShape(dp=2, op=4))
        (2, 2)
        """
        return tuple(size // mesh.size(dim) for size, dim in zip(shape, self.dims, strict=True))

    def local_bytes(self, shape: tuple[int, ...], itemsize: int, mesh: MeshShape) -> int:
        """Return the bytes of the piece that each device holds."""
        return prod(self.local_shape(shape, mesh)) * itemsize


def replicated(rank: int) -> Sharding:
    """Return the sharding of an array that is replicated on every device.

    >>> str(replicated(3))
    'RRR'
    """
    return Sharding(((),) * rank)


def split_along(rank: int, dim: int, axes: Axes) -> Sharding:
    """Return the sharding in which these axes split one dim (negative: from the last).

    >>> str(split_along(3, -1, (Axis.DP, Axis.OP)))
    'RRS01'
    """
    dims: list[Axes] = [()] * rank
    dims[dim] = axes
    return Sharding(tuple(dims))


def parse_sharding(text: str) -> Sharding:
    """Parse the text of a sharding, such as "S0R".

    Raises:
        PlanError: the text is not a sharding.
    """
    if text == _SCALAR:
        return Sharding(())
    if not text or not re.fullmatch(f"(?:{_DIM.pattern})+", text):
        raise PlanError(
            f"`sharding` ({text!r}) must be R, S0, S1, S01 or S10 for each dim; write S0R for rows "
            f"over dp, {_SCALAR!r} for a scalar"
        )
    dims = [match.group(1) or "" for match in _DIM.finditer(text)]
    return Sharding(tuple(tuple(Axis(int(axis)) for axis in dim) for dim in dims))
