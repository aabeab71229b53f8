"""Hand-written strategies, as pins: data parallelism, ZeRO, Megatron and combinations.

On a mesh of dp x op, dp splits the batch and op splits layers; each may be 1::

    by_hand(mesh, parameters=.., optimizer=.., batch=..)         DDP
    ... zero=ZeroLevel.OPTIMIZER or GRADIENTS                    ZeRO-1 and 2: moments split over dp
    ... zero=ZeroLevel.PARAMETERS                                ZeRO-3, FSDP: parameters too
    ... split={"up.kernel": -1, "down.kernel": -2, ...}          Megatron along op

ZeRO-1 and 2 pin the same: both scatter the sums of gradients, and differ in when those are freed.
What ZeRO scatters is split along the first dim that dp divides and op does not split, or else along
the one that op splits.

Source: Rajbhandari et al., "ZeRO", SC 2020; Shoeybi et al., "Megatron-LM", 2019.
"""

from collections.abc import Mapping

from jaxpipe.baselines.autoshard.strategy.mesh_shape import Axis, MeshShape
from jaxpipe.baselines.autoshard.strategy.pins import Pins
from jaxpipe.baselines.autoshard.strategy.sharding import Sharding, replicated, split_along
from jaxpipe.baselines.autoshard.strategy.strategy import ZeroLevel

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of some arguments of a step, by path."""


def by_hand(
    mesh: MeshShape,
    *,
    parameters: Shapes,
    optimizer: Shapes,
    batch: Shapes,
    zero: ZeroLevel = ZeroLevel.NONE,
    split: Mapping[str, int] | None = None,
) -> Pins:
    """Return the pins of a hand-written strategy.

    `split` gives the dim (negative: from the last) along which op splits the arguments whose path,
    less the numbers of layers, ends with a name. A dim that does not divide evenly stays whole. The
    batch is split by examples, in its first dim.

    >>> mesh = MeshShape(dp=2, op=2)
    >>> pins = by_hand(mesh, parameters={"params.up": (4, 8)}, optimizer={"mu.up": (4, 8)},
    ...                batch={"x": (8,)}, zero=ZeroLevel.OPTIMIZER, split={"up": -1})
    >>> {path: str(sharding) for path, sharding in pins.arguments.items()}
    {'params.up': 'RS1', 'mu.up': 'S0S1', 'x': 'S0'}
    """
    split = {} if split is None else split
    arguments: dict[str, Sharding] = {}
    for shapes, scattered in (
        (parameters, zero is ZeroLevel.PARAMETERS),
        (optimizer, zero is not ZeroLevel.NONE),
    ):
        for path, shape in shapes.items():
            sharding = _tensor_parallel(path, shape, split, mesh)
            arguments[path] = _scattered(sharding, shape, mesh) if scattered else sharding
    for path, shape in batch.items():
        examples = split_along(len(shape), 0, (Axis.DP,)) if shape else replicated(0)
        fits = mesh.dp > 1 and examples.fits(shape, mesh)
        arguments[path] = examples if fits else replicated(len(shape))
    return Pins(arguments=arguments)


def _tensor_parallel(
    path: str, shape: tuple[int, ...], split: Mapping[str, int], mesh: MeshShape
) -> Sharding:
    dim = _split_dim(path, split)
    if mesh.op > 1 and dim is not None and -len(shape) <= dim < len(shape):
        sharding = split_along(len(shape), dim, (Axis.OP,))
        if sharding.fits(shape, mesh):
            return sharding
    return replicated(len(shape))


def _split_dim(path: str, split: Mapping[str, int]) -> int | None:
    """Match an array by the end of its path."""
    words = [word for word in path.split(".") if not word.isdecimal()]
    # Longest first: "mlp.up.kernel" goes before "kernel".
    names = (".".join(words[start:]) for start in range(len(words)))
    return next((split[name] for name in names if name in split), None)


def _scattered(sharding: Sharding, shape: tuple[int, ...], mesh: MeshShape) -> Sharding:
    """Split one more dim over dp, if one divides evenly."""
    if mesh.dp == 1:
        return sharding
    # Stable: dims that op leaves whole first, each in order (False sorts before True).
    for dim in sorted(range(len(shape)), key=lambda dim: bool(sharding.dims[dim])):
        axes = list(sharding.dims)
        # Innermost: gathered over dp, op's shards are whole again.
        axes[dim] = (*axes[dim], Axis.DP)
        grown = Sharding(tuple(axes))
        if grown.fits(shape, mesh):
            return grown
    return sharding
