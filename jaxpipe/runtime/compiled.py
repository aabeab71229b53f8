"""The functions of a stage, jitted and compiled once, before the first step.

Compiling ahead keeps it out of every deadline and every measurement, and no shape can ever compile
again: a compiled function refuses what it was not made for.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxpipe.runtime.functions import StageFunctions
from jaxpipe.runtime.split import SplitBackward
from jaxpipe.schedule import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStage:
    """What a rank calls: the methods of `StageFunctions`, compiled.

    `cast` returns its argument where parameters and activations have one dtype. `backwards` has
    those that the schedule asks for, and `split` is there if it splits any; they donate the
    gradients, and `update` the parameters and the moments.
    """

    functions: StageFunctions
    activation: jax.ShapeDtypeStruct
    loss_cotangent: jax.Array
    init: Callable[..., Any]
    cast: Callable[..., Any]
    zeros: Callable[..., Any]
    forward: Callable[..., Any]
    evaluate: Callable[..., Any]
    backwards: dict[Op, Callable[..., Any]]
    split: SplitBackward | None
    pack: Callable[..., Any]
    square_norm: Callable[..., Any]
    update: Callable[..., Any]


def compile_stage(functions: StageFunctions, *, ops: Collection[Op]) -> CompiledStage:
    """Compile the functions of a stage that `ops` need: one compilation each, and none later."""
    stage, work = functions.stage, functions.work
    activation = functions.activation()
    tokens = jax.ShapeDtypeStruct((work.microbatch, work.sequence), jnp.int32)
    data = (tokens if stage.is_first else activation, tokens if stage.is_last else None)
    position = jax.ShapeDtypeStruct((2,), jnp.int32)
    scalar = jax.ShapeDtypeStruct((), jnp.float32)

    init, (params, moments) = _compile(functions.init)
    cast, compute = _compile(functions.cast, params)
    zeros, gradients = _compile(functions.zeros)
    forward, (output, residuals) = _compile(functions.forward, compute, *data, position)
    evaluate, _ = _compile(functions.evaluate, compute, *data)
    given = (compute, residuals, output)
    backwards, split = {}, None
    if Op.BACKWARD in ops:
        whole, _ = _compile(functions.backward, *given, gradients, donate=(3,))
        backwards[Op.BACKWARD] = whole
    if Op.BACKWARD_INPUT in ops:
        split = functions.split(*given)
        backwards |= _compile_halves(functions, split, given, gradients)
    pack, buckets = _compile(functions.pack, gradients)
    square_norm, _ = _compile(functions.square_norm, buckets)
    update, _ = _compile(functions.update, params, moments, buckets, scalar, donate=(0, 1))
    return CompiledStage(
        functions=functions,
        activation=activation,
        loss_cotangent=functions.loss_cotangent(),
        init=init,
        cast=_same if compute == params else cast,
        zeros=zeros,
        forward=forward,
        evaluate=evaluate,
        backwards=backwards,
        split=split,
        pack=pack,
        square_norm=square_norm,
        update=update,
    )


def _compile_halves(
    functions: StageFunctions, split: SplitBackward, given: tuple[Any, Any, Any], gradients: Any
) -> dict[Op, Callable[..., Any]]:
    """Compile a split backward, given its arguments: compute, residuals and cotangent."""
    compute, residuals, cotangent = given
    of_input, (_, crossing) = _compile(partial(functions.backward_input, split), *given)
    carried = split.carry(residuals, cotangent, crossing)
    of_weights, _ = _compile(
        partial(functions.backward_weight, split), compute, carried, gradients, donate=(2,)
    )
    return {Op.BACKWARD_INPUT: of_input, Op.BACKWARD_WEIGHT: of_weights}


def _compile(function: Callable, *arguments: Any, donate: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """Return the compiled function, and the shapes of what it returns."""
    lowered = jax.jit(function, donate_argnums=donate).lower(*arguments)
    shapes = jax.tree.map(lambda o: jax.ShapeDtypeStruct(o.shape, o.dtype), lowered.out_info)
    return lowered.compile(), shapes


def _same(params: Any) -> Any:
    return params
