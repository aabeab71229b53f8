"""Compile a step with a strategy: with explicit collectives, or with XLA's partitioner (GSPMD)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding

from jaxpipe.baselines.autoshard.graph import path_name
from jaxpipe.baselines.autoshard.resharding import Computed, LayoutBook, carried
from jaxpipe.baselines.autoshard.spmd.check_choice import check_choices
from jaxpipe.baselines.autoshard.spmd.interpret import Combining, Evaluation
from jaxpipe.baselines.autoshard.spmd.microbatches import phases_of, run_microbatches, times_of
from jaxpipe.baselines.autoshard.spmd.program import OperatorProgram, array_type, trace_program
from jaxpipe.baselines.autoshard.spmd.propagate import propagate
from jaxpipe.baselines.autoshard.strategy import (
    MeshShape,
    OperatorChoice,
    Sharding,
    Strategy,
    ZeroLevel,
    jax_mesh,
    named_sharding,
    partition_spec,
)
from jaxpipe.errors import PlanError

Device: TypeAlias = Any
"""A device of JAX."""

_ALL_TOGETHER = Combining()
_SCATTERS = frozenset((ZeroLevel.GRADIENTS, ZeroLevel.PARAMETERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStep:
    """A function of trees of arrays, and the names of its arguments and results in a strategy.

    With one name in `result_names` the function returns one tree, else a tuple of trees.

    Args:
        run: the function.
        names: those of its arguments. What is no result too is the batch, of which each array has
            the examples along its first dim.
        result_names: those of its results.
        microbatches: how many parts of the batch run one after the other in a sharded step; the
            function has to mark its sums over examples, as `train_step` does.
        duplex: whether two microbatches run together, the collectives of one during the products of
            the other.

    Raises:
        PlanError: there is no microbatch, or a duplex of not two.
    """

    run: Callable[..., Any]
    names: tuple[str, ...]
    result_names: tuple[str, ...]
    microbatches: int = 1
    duplex: bool = False

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise PlanError(f"`microbatches` must be at least 1, is {self.microbatches}; raise it")
        if self.duplex and self.microbatches != 2:
            raise PlanError(f"`microbatches` ({self.microbatches}) must be 2 with `duplex`")

    @property
    def batch(self) -> tuple[str, ...]:
        """The names of the arguments that are divided into microbatches."""
        return tuple(name for name in self.names if name not in self.result_names)

    def of_one_microbatch(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shapes of the arguments for one microbatch: what a strategy is searched for.

        Raises:
            PlanError: a batch does not divide into microbatches.
        """
        return tuple(
            jax.tree.map(self._divided, tree) if name in self.batch else tree
            for name, tree in zip(self.names, arguments, strict=True)
        )

    def _divided(self, leaf: Any) -> Any:
        if self.microbatches == 1 or not leaf.shape:
            return leaf
        if leaf.shape[0] % self.microbatches:
            raise PlanError(
                f"`microbatches` must divide the batch: {self.microbatches} does not divide "
                f"{leaf.shape[0]} examples; choose another number, or another batch"
            )
        shape = (leaf.shape[0] // self.microbatches, *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    def results(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shapes of the trees that the function returns."""
        shapes = jax.eval_shape(self.run, *arguments)
        return (shapes,) if len(self.result_names) == 1 else tuple(shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedProgram:
    """A program, and the shardings of its arguments, results and operators.

    `batch` are the arguments that microbatches divide.
    """

    program: OperatorProgram
    arguments: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    choices: tuple[OperatorChoice, ...]
    batch: tuple[int, ...]


def shard_program(step: NamedStep, arguments: Sequence[Any], strategy: Strategy) -> ShardedProgram:
    """Return the program of a step with a choice for every operator.

    An operator that the strategy does not name follows its operands.

    Raises:
        PlanError: the strategy does not say how an argument is stored, or it does not fit.
    """
    arguments = step.of_one_microbatch(arguments)
    program = trace_program(step.run, *arguments)
    inputs = _paths(arguments, step.names)
    outputs = _paths(step.results(arguments), step.result_names)
    stored = _named(strategy.arguments, inputs, _shapes(program, program.arguments), strategy.mesh)
    needed = _named(strategy.results, outputs, _shapes(program, program.results), strategy.mesh)
    check_choices(program, strategy.mesh, strategy.operators)
    choices = propagate(
        program,
        strategy.mesh,
        arguments=dict(zip(program.arguments, stored, strict=True)),
        results=dict(zip(program.results, needed, strict=True)),
        given=strategy.operators,
        scatter=strategy.zero in _SCATTERS,
    )
    batch = _numbers_of(step.batch, step, arguments, program)
    is_divided = step.microbatches > 1
    times = times_of(phases_of(program, batch), step.microbatches) if is_divided else {}
    if strategy.operators or is_divided:
        choices = _carried(program, choices, strategy.mesh, times)
    return ShardedProgram(
        program=program, arguments=stored, results=needed, choices=choices, batch=batch
    )


def _carried(
    program: OperatorProgram,
    choices: Sequence[OperatorChoice],
    mesh: MeshShape,
    times: Mapping[int, int],
) -> tuple[OperatorChoice, ...]:
    """Return the choices with partial sums reduced where that takes least.

    A strategy by hand reduces them where they are made, as published; only microbatches need more.
    """
    return carried(
        [
            Computed(
                primitive=operator.name,
                inputs=operator.inputs,
                outputs=operator.outputs,
                rule=operator.rule,
                times=times.get(position, 1),
            )
            for position, operator in enumerate(program.operators)
        ],
        choices,
        {number: array_type(array) for number, array in program.arrays.items()},
        mesh,
        needed=frozenset(program.results),
    )


def sharded_step(
    step: NamedStep,
    arguments: Sequence[Any],
    strategy: Strategy,
    *,
    devices: Sequence[Device] | None = None,
    donated: Sequence[int] = (0,),
    combining: Combining = _ALL_TOGETHER,
) -> Callable[..., Any]:
    """Return the jitted step with explicit collectives.

    Args:
        step: the step to run.
        arguments: its trees of arrays, or their shapes.
        strategy: how they are sharded.
        devices: the devices of the mesh; default: those of JAX.
        donated: the arguments that results may overwrite.
        combining: which collectives of several arrays are one.

    Raises:
        PlanError: the strategy does not say how an argument is stored, or it does not fit.
    """
    sharded = shard_program(step, arguments, strategy)
    mesh = jax_mesh(strategy.mesh, devices)
    combining = combining.on(mesh.devices.flat[0].platform)
    mapped = jax.shard_map(
        local_step(step, sharded, strategy.mesh, combining=combining),
        mesh=mesh,
        in_specs=tuple(map(partition_spec, sharded.arguments)),
        out_specs=tuple(map(partition_spec, sharded.results)),
        # Whether results are replicated follows from the choices: JAX's check cannot see it.
        check_vma=False,
    )
    structure = jax.tree.structure(jax.eval_shape(step.run, *arguments))

    def run(*trees: Any) -> Any:
        return jax.tree.unflatten(structure, mapped(*jax.tree.leaves(trees)))

    return jax.jit(run, donate_argnums=tuple(donated))


def local_step(
    step: NamedStep,
    sharded: ShardedProgram,
    mesh: MeshShape,
    *,
    combining: Combining,
) -> Callable[..., tuple[Array, ...]]:
    """Return what each device runs: from pieces of the arguments to pieces of the results."""
    program = sharded.program

    def local(*pieces: Array) -> tuple[Array, ...]:
        evaluation = Evaluation(
            program=program,
            choices=sharded.choices,
            mesh=mesh,
            combining=combining,
            book=LayoutBook(mesh=mesh),
        )
        arrays = dict(
            zip(program.arguments, zip(sharded.arguments, pieces, strict=True), strict=True)
        )
        wanted = dict(zip(program.results, sharded.results, strict=True))
        if step.microbatches == 1:
            return tuple(evaluation.run(arrays, wanted))
        return tuple(
            run_microbatches(
                evaluation,
                arrays,
                wanted,
                batch=sharded.batch,
                num_microbatches=step.microbatches,
                duplex=step.duplex,
            )
        )

    return local


def partitioned_step(
    step: NamedStep,
    arguments: Sequence[Any],
    strategy: Strategy,
    *,
    devices: Sequence[Device] | None = None,
    donated: Sequence[int] = (0,),
) -> Callable[..., Any]:
    """Return the jitted step; GSPMD derives its collectives from arguments and results."""
    mesh = jax_mesh(strategy.mesh, devices)
    results = placed(step.results(arguments), strategy.results, mesh, names=step.result_names)
    return jax.jit(
        step.run,
        in_shardings=placed(arguments, strategy.arguments, mesh, names=step.names),
        out_shardings=results[0] if len(step.result_names) == 1 else results,
        donate_argnums=tuple(donated),
    )


def placed(
    trees: Sequence[Any], shardings: Mapping[str, Sharding], mesh: Mesh, *, names: Sequence[str]
) -> tuple[Any, ...]:
    """Return the trees with each leaf's `NamedSharding` in its place, for `jax.device_put`."""

    def of(name: str, keys: Any, leaf: Any) -> NamedSharding:
        return named_sharding(_sharding_of(shardings, path_name(name, keys), leaf.shape), mesh)

    return tuple(
        jax.tree_util.tree_map_with_path(lambda keys, leaf, name=name: of(name, keys, leaf), tree)
        for name, tree in zip(names, trees, strict=True)
    )


def abstract_arrays(trees: Any, shardings: Any) -> Any:
    """Return the shapes of arrays with these shardings, for a compiler; see `placed`."""
    return jax.tree.map(
        lambda leaf, lies: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=lies),
        trees,
        shardings,
    )


def _paths(trees: Sequence[Any], names: Sequence[str]) -> list[str]:
    return [
        path_name(name, keys)
        for name, tree in zip(names, trees, strict=True)
        for keys, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _numbers_of(
    names: Sequence[str], step: NamedStep, arguments: Sequence[Any], program: OperatorProgram
) -> tuple[int, ...]:
    """Return the numbers of the arrays in these arguments."""
    owners = [
        name
        for name, tree in zip(step.names, arguments, strict=True)
        for _ in jax.tree.leaves(tree)
    ]
    pairs = zip(owners, program.arguments, strict=True)
    return tuple(number for owner, number in pairs if owner in names)


def _shapes(program: OperatorProgram, numbers: Sequence[int]) -> list[tuple[int, ...]]:
    return [program.arrays[number].shape for number in numbers]


def _named(
    shardings: Mapping[str, Sharding],
    paths: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    mesh: MeshShape,
) -> tuple[Sharding, ...]:
    shardings_found: list[Sharding] = []
    for path, shape in zip(paths, shapes, strict=True):
        sharding = _sharding_of(shardings, path, shape)
        if not sharding.fits(shape, mesh):
            raise PlanError(
                f"`{path}`, of shape {shape}, must be divided evenly by its sharding, {sharding} "
                f"on {mesh.dp} x {mesh.op} devices; trace the strategy and the step alike"
            )
        shardings_found.append(sharding)
    return tuple(shardings_found)


def _sharding_of(shardings: Mapping[str, Sharding], path: str, shape: tuple[int, ...]) -> Sharding:
    if path not in shardings:
        raise PlanError(
            f"`{path}` has no sharding: the strategy must have one for each argument and result, "
            f"and has {', '.join(sorted(shardings)[:4])} and others"
        )
    sharding = shardings[path]
    if len(sharding.dims) != len(shape):
        raise PlanError(
            f"`{path}`, of shape {shape}, must have as many dims as its sharding, {sharding}; "
            "trace the strategy and the step alike"
        )
    return sharding
