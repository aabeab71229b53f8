"""Compile a step with a strategy: with explicit collectives, or with XLA's partitioner (GSPMD)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding

from jaxpipe.autoshard.graph import path_name
from jaxpipe.autoshard.spmd.check_choice import check_choices
from jaxpipe.autoshard.spmd.interpret import Evaluation
from jaxpipe.autoshard.spmd.program import Program, trace_program
from jaxpipe.autoshard.spmd.propagate import propagate
from jaxpipe.autoshard.strategy import (
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

_SCATTERS = frozenset((ZeroLevel.GRADIENTS, ZeroLevel.PARAMETERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStep:
    """A function of trees of arrays, and the names of its arguments and results in a strategy.

    With one name in `result_names` the function returns one tree, else a tuple of trees.
    """

    run: Callable[..., Any]
    names: tuple[str, ...]
    result_names: tuple[str, ...]

    def results(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shapes of the trees that the function returns."""
        shapes = jax.eval_shape(self.run, *arguments)
        return (shapes,) if len(self.result_names) == 1 else tuple(shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedProgram:
    """A program, and the shardings of its arguments, results and operators."""

    program: Program
    arguments: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    choices: tuple[OperatorChoice, ...]


def shard_program(step: NamedStep, arguments: Sequence[Any], strategy: Strategy) -> ShardedProgram:
    """Return the program of a step with a choice for every operator.

    An operator that the strategy does not name follows its operands.

    Raises:
        PlanError: the strategy does not say how an argument is stored, or it does not fit.
    """
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
    return ShardedProgram(program=program, arguments=stored, results=needed, choices=choices)


def sharded_step(
    step: NamedStep,
    arguments: Sequence[Any],
    strategy: Strategy,
    *,
    devices: Sequence[Device] | None = None,
    donated: Sequence[int] = (0,),
    by_layout: bool = False,
) -> Callable[..., Any]:
    """Return the jitted step with explicit collectives.

    Args:
        step: the step to run.
        arguments: its trees of arrays, or their shapes.
        strategy: how they are sharded.
        devices: the devices of the mesh; default: those of JAX.
        donated: the arguments that results may overwrite.
        by_layout: combine reduce-scatters only where the same other axes split the arrays.

    Raises:
        PlanError: the strategy does not say how an argument is stored, or it does not fit.
    """
    sharded = shard_program(step, arguments, strategy)
    program = sharded.program

    def local(*pieces: Array) -> tuple[Array, ...]:
        evaluation = Evaluation(
            program=program, choices=sharded.choices, mesh=strategy.mesh, by_layout=by_layout
        )
        held = zip(sharded.arguments, pieces, strict=True)
        results = evaluation.run(
            dict(zip(program.arguments, held, strict=True)),
            dict(zip(program.results, sharded.results, strict=True)),
        )
        return tuple(results)

    mapped = jax.shard_map(
        local,
        mesh=jax_mesh(strategy.mesh, devices),
        in_specs=tuple(map(partition_spec, sharded.arguments)),
        out_specs=tuple(map(partition_spec, sharded.results)),
        # Whether results are replicated follows from the choices: JAX's check cannot see it.
        check_vma=False,
    )
    structure = jax.tree.structure(jax.eval_shape(step.run, *arguments))

    def run(*trees: Any) -> Any:
        return jax.tree.unflatten(structure, mapped(*jax.tree.leaves(trees)))

    return jax.jit(run, donate_argnums=tuple(donated))


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


def _shapes(program: Program, numbers: Sequence[int]) -> list[tuple[int, ...]]:
    return [program.arrays[number].shape for number in numbers]


def _named(
    shardings: Mapping[str, Sharding],
    paths: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    mesh: MeshShape,
) -> tuple[Sharding, ...]:
    found: list[Sharding] = []
    for path, shape in zip(paths, shapes, strict=True):
        sharding = _sharding_of(shardings, path, shape)
        if not sharding.fits(shape, mesh):
            raise PlanError(
                f"a sharding divides each dim evenly: `{path}` is {shape}, its sharding {sharding} "
                f"on {mesh.dp} x {mesh.op} devices; trace the strategy and the step alike"
            )
        found.append(sharding)
    return tuple(found)


def _sharding_of(shardings: Mapping[str, Sharding], path: str, shape: tuple[int, ...]) -> Sharding:
    if path not in shardings:
        raise PlanError(
            f"a strategy says how each argument and result is sharded: `{path}` is missing; it "
            f"names {', '.join(sorted(shardings)[:4])} and others"
        )
    sharding = shardings[path]
    if len(sharding.dims) != len(shape):
        raise PlanError(
            f"a sharding has as many dims as its array: `{path}` is {shape}, its sharding "
            f"{sharding}; trace the strategy and the step alike"
        )
    return sharding
