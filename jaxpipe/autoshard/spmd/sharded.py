"""Run a step as a strategy says: by explicit collectives, or by the compiler's own partitioner."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding

from jaxpipe.autoshard.graph import path_name
from jaxpipe.autoshard.spmd.evaluate import Evaluation
from jaxpipe.autoshard.spmd.program import Program, trace_program
from jaxpipe.autoshard.spmd.propagate import propagate
from jaxpipe.autoshard.strategy import (
    OperatorChoice,
    Sharding,
    Strategy,
    ZeroLevel,
    jax_mesh,
    named_sharding,
    partition_spec,
)
from jaxpipe.errors import PlanError

_SCATTERS = frozenset((ZeroLevel.GRADIENTS, ZeroLevel.PARAMETERS))


def sharded_step(
    step: Callable[..., Any],
    arguments: Sequence[Any],
    strategy: Strategy,
    *,
    names: Sequence[str],
    result_names: Sequence[str],
    devices: Sequence[jax.Device] | None = None,
    donated: Sequence[int] = (0,),
    by_layout: bool = False,
) -> Callable[..., Any]:
    """Return the jitted step, with its collectives written out.

    Args:
        step: a function of trees of arrays.
        arguments: those trees, or their shapes.
        strategy: how they are sharded. An operator that it does not name follows its operands.
        names: what the strategy calls the arguments.
        result_names: what it calls the results.
        devices: those of the mesh; JAX's own, if none are given.
        donated: which arguments may be overwritten by results.
        by_layout: combine reduce-scatters only where the same other axes split the arrays.

    Raises:
        PlanError: the strategy does not say how an argument is stored, or it does not fit.
    """
    mesh = jax_mesh(strategy.mesh, devices)
    program = trace_program(step, *arguments)
    stored = _named(strategy.arguments, program.arguments, _paths(arguments, names), program)
    out_shape = jax.eval_shape(step, *arguments)
    outputs = (out_shape,) if len(result_names) == 1 else out_shape
    needed = _named(strategy.results, program.results, _paths(outputs, result_names), program)
    choices = propagate(
        program,
        strategy.mesh,
        arguments=dict(zip(program.arguments, stored, strict=True)),
        results=dict(zip(program.results, needed, strict=True)),
        given=strategy.operators,
        scatter=strategy.zero in _SCATTERS,
    )

    def local(*pieces: Array) -> tuple[Array, ...]:
        evaluation = Evaluation(
            program=program, choices=choices, mesh=strategy.mesh, by_layout=by_layout
        )
        given = zip(program.arguments, stored, pieces, strict=True)
        return tuple(
            evaluation.run(
                {number: (sharding, piece) for number, sharding, piece in given},
                dict(zip(program.results, needed, strict=True)),
            )
        )

    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=tuple(map(partition_spec, stored)),
        out_specs=tuple(map(partition_spec, needed)),
        check_vma=False,
    )

    def run(*trees: Any) -> Any:
        results = mapped(*jax.tree.leaves(trees))
        return jax.tree.unflatten(jax.tree.structure(out_shape), results)

    return jax.jit(run, donate_argnums=tuple(donated))


def partitioned_step(
    step: Callable[..., Any],
    arguments: Sequence[Any],
    strategy: Strategy,
    *,
    names: Sequence[str],
    result_names: Sequence[str],
    devices: Sequence[jax.Device] | None = None,
) -> Callable[..., Any]:
    """Return the jitted step, whose collectives the compiler finds from arguments and results."""
    mesh = jax_mesh(strategy.mesh, devices)
    outputs = jax.eval_shape(step, *arguments)
    results = (outputs,) if len(result_names) == 1 else outputs
    shardings = placed(results, strategy.results, mesh, names=result_names)
    return jax.jit(
        step,
        in_shardings=placed(arguments, strategy.arguments, mesh, names=names),
        out_shardings=shardings[0] if len(result_names) == 1 else shardings,
        donate_argnums=0,
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


def chosen(
    step: Callable[..., Any],
    arguments: Sequence[Any],
    strategy: Strategy,
    *,
    names: Sequence[str],
    result_names: Sequence[str],
) -> Mapping[int, OperatorChoice]:
    """Return how every operator of the step is computed, by its index in the graph."""
    program = trace_program(step, *arguments)
    outputs = jax.eval_shape(step, *arguments)
    results = (outputs,) if len(result_names) == 1 else outputs
    stored = _named(strategy.arguments, program.arguments, _paths(arguments, names), program)
    needed = _named(strategy.results, program.results, _paths(results, result_names), program)
    choices = propagate(
        program,
        strategy.mesh,
        arguments=dict(zip(program.arguments, stored, strict=True)),
        results=dict(zip(program.results, needed, strict=True)),
        given=strategy.operators,
        scatter=strategy.zero in _SCATTERS,
    )
    pairs = zip(program.operators, choices, strict=True)
    return {each.index: choice for each, choice in pairs if each.index is not None}


def _paths(trees: Sequence[Any], names: Sequence[str]) -> list[str]:
    return [
        path_name(name, keys)
        for name, tree in zip(names, trees, strict=True)
        for keys, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _named(
    shardings: Mapping[str, Sharding],
    numbers: Sequence[int],
    paths: Sequence[str],
    program: Program,
) -> list[Sharding]:
    return [
        _sharding_of(shardings, path, program.arrays[number].shape)
        for number, path in zip(numbers, paths, strict=True)
    ]


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
