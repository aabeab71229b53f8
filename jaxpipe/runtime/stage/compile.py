"""The functions of a stage, jitted and compiled once, before the first step.

Compiling ahead keeps it out of every deadline and every measurement, and no shape can ever compile
again: a compiled function refuses what it was not made for.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jaxpipe.comm import HostOrDeviceArray
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.runtime.stage.mesh import ONE_DEVICE, Layout
from jaxpipe.runtime.stage.split_backward import SplitBackward
from jaxpipe.schedule import Op


@runtime_checkable
class Carries(Protocol):
    """What lies between the halves of a backward, as `SplitBackward` knows it."""

    def carry(self, residuals: Any, cotangent: Any, crossing: Any) -> Any:
        """Return what the backward-weight needs of all that the backward-input had and made."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStage:
    """What a rank calls: the methods of `StageFunctions`, compiled.

    The first stage reads tokens, the last one computes the loss.

    `cast` returns its argument where parameters and activations have one dtype. `backwards` has
    those that the schedule asks for, and `split` is there if it splits any; they donate the
    gradients, and `update` the parameters and the moments. All arrays lie as `layout` says.

    Where replicas share the optimizer out, `update` donates the moments alone and returns pieces of
    the parameters; `join` makes parameters of them and the vector of all pieces, and `shared_out`
    knows the pieces. Both are None elsewhere.
    """

    is_first: bool
    is_last: bool
    layout: Layout
    activation: jax.ShapeDtypeStruct
    loss_cotangent: HostOrDeviceArray
    init: Callable[..., Any]
    cast: Callable[..., Any]
    zeros: Callable[..., Any]
    forward: Callable[..., Any]
    evaluate: Callable[..., Any]
    backwards: dict[Op, Callable[..., Any]]
    split: Carries | None
    pack: Callable[..., Any]
    square_norm: Callable[..., Any]
    update: Callable[..., Any]
    join: Callable[..., Any] | None = None
    shared_out: StageFunctions | None = None


def compile_stage(
    functions: StageFunctions, *, ops: Collection[Op], layout: Layout = ONE_DEVICE
) -> CompiledStage:
    """Compile the functions of a stage that `ops` need: one compilation each, and none later."""
    compile_ = partial(_compile, layout)
    activation = functions.activation()
    data, position, scalar = _inputs(functions, activation, layout)
    whole = layout.whole

    init, (params, moments) = compile_(functions.init, out=layout.of_result(functions.init))
    cast, compute = compile_(functions.cast, params, out=layout.of_result(functions.cast, params))
    zeros, gradients = compile_(functions.zeros, out=layout.of_result(functions.zeros))
    forward, (output, residuals) = compile_(
        layout.entering(functions.forward, 1, 2), compute, *data, position, out=(whole, None)
    )
    evaluate, _ = compile_(layout.entering(functions.evaluate, 1, 2), compute, *data, out=whole)
    backwards, split = _compile_backwards(
        functions, (compute, residuals, output), gradients, ops=ops, layout=layout
    )
    pack, buckets = compile_(functions.pack, gradients, out=whole)
    square_norm, _ = compile_(functions.square_norm, buckets, out=whole)
    scalars = (scalar, scalar) if functions.scales_loss else (scalar,)
    update, join = _compile_update(functions, params, moments, buckets, scalars, layout=layout)
    return CompiledStage(
        is_first=functions.stage.is_first,
        is_last=functions.stage.is_last,
        layout=layout,
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
        join=join,
        shared_out=None if functions.share is None else functions,
    )


def _inputs(
    functions: StageFunctions, activation: jax.ShapeDtypeStruct, layout: Layout
) -> tuple[tuple[Any, Any], jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Return what comes from without: input and targets, the position, and a scalar."""
    stage, work = functions.stage, functions.work
    tokens = layout.shape((work.microbatch, work.sequence), jnp.int32)
    hidden = layout.shape(activation.shape, activation.dtype)
    data = (tokens if stage.is_first else hidden, tokens if stage.is_last else None)
    return data, layout.shape((2,), jnp.int32), layout.shape((), jnp.float32)


def _compile_update(
    functions: StageFunctions,
    params: Any,
    moments: Any,
    buckets: Any,
    scalars: tuple[Any, ...],
    *,
    layout: Layout,
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """Compile the update, and what makes parameters of pieces if these are what it makes."""
    given = (params, moments, buckets, *scalars)
    if functions.share is None:
        out = layout.of((params, moments))
        return _compile(layout, functions.update, *given, donate=(0, 1), out=out)[0], None
    assert layout.mesh is None, "the devices of a mesh and replicas do not share a stage both"
    update, (held, _) = _compile(layout, functions.update, *given, donate=(1,))
    dtype = jax.tree.leaves(params)[0].dtype
    flat = layout.shape((functions.num_shared_out(),), dtype)
    join, _ = _compile(layout, functions.join, flat, held)
    return update, join


def _compile_backwards(
    functions: StageFunctions,
    given: tuple[Any, Any, Any],
    gradients: Any,
    *,
    ops: Collection[Op],
    layout: Layout,
) -> tuple[dict[Op, Callable[..., Any]], SplitBackward | None]:
    """Compile the backwards among `ops`, given their arguments: compute, residuals, cotangent."""
    backwards: dict[Op, Callable[..., Any]] = {}
    whole, of_gradients = layout.whole, layout.of(gradients)
    if Op.BACKWARD in ops:
        backwards[Op.BACKWARD], _ = _compile(
            layout,
            layout.entering(functions.backward, 2),
            *(*given, gradients),
            donate=(3,),
            out=(whole, of_gradients),
        )
    if Op.BACKWARD_INPUT not in ops:
        return backwards, None
    compute, residuals, cotangent = given
    split = functions.split(*given)
    backwards[Op.BACKWARD_INPUT], (_, crossing) = _compile(
        layout,
        layout.entering(partial(functions.backward_input, split), 2),
        *given,
        out=(whole, None),
    )
    carried = split.carry(residuals, cotangent, crossing)
    backwards[Op.BACKWARD_WEIGHT], _ = _compile(
        layout,
        partial(functions.backward_weight, split),
        *(compute, carried, gradients),
        donate=(2,),
        out=of_gradients,
    )
    return backwards, split


def _compile(
    layout: Layout,
    function: Callable,
    *arguments: Any,
    donate: tuple[int, ...] = (),
    out: Any = None,
) -> tuple[Any, Any]:
    """Return the compiled function, and the shapes of what it returns; XLA decides where it lies.

    Where `out` has a sharding, that decides.
    """
    jitted = jax.jit(function, donate_argnums=donate, out_shardings=out)
    lowered = jitted.lower(*arguments)
    compiled = lowered.compile()
    return compiled, layout.shapes(lowered.out_info, compiled.output_shardings)


def _same(params: Any) -> Any:
    return params
