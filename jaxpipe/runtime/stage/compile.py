"""`CompiledStage`: the functions of a stage, compiled ahead of the first step.

Compiling ahead keeps it out of every deadline and every measurement, and no shape can ever compile
again: an executable refuses arguments that it was not compiled for.
"""

import os
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.stages import Compiled

from jaxpipe.attention_calls import AttentionCalls, offered
from jaxpipe.comm import HostOrDeviceArray
from jaxpipe.runtime.blas.chosen_products import Products
from jaxpipe.runtime.blas.product_lowering import FORMATS, use_attention, use_products
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.runtime.stage.calls import OutputArrays, Scalar, StageSpec, TargetArrays
from jaxpipe.runtime.stage.compiler import Compiler, Once, compile_threads, compiler_options
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.runtime.stage.gradient_buckets import Buckets
from jaxpipe.runtime.stage.lowered_cache import LoweredCache, LoweredFor, opened_parts
from jaxpipe.runtime.stage.mesh import StageLayout
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.placed import SampleParts
from jaxpipe.runtime.stage.row_products import fast_row_products
from jaxpipe.runtime.stage.split_backward import Carried, CarryForm
from jaxpipe.runtime.stage.vjp import Residuals
from jaxpipe.schedule import Op

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStage:
    """`StageCalls` of one rank; `executables` has one per method, but only those that it needs.

    A schedule needs whole backwards, split ones, or both; `carry_form` is None where it splits
    none. Without "cast", parameters already have the compute dtype. Layers that are not scanned,
    `num_cast_layers`, get it from "cast_layer", one by one. Only a sharded optimizer has "join".

    Donated arguments are gone after a call: the `gradients` of all backwards, and the parameters
    and moments of `update`; with a sharded optimizer its moments alone, since the old parameters
    give way to those of `join`. All arrays lie as `spec.layout` says.
    """

    spec: StageSpec
    executables: Mapping[str, Compiled]
    carry_form: CarryForm | None = None
    num_cast_layers: int = 0

    def init(self) -> tuple[Parameters, optax.OptState]:
        """Return fresh parameters and moments."""
        return self._call("init")

    def cast(self, params: Parameters) -> Parameters:
        """Return the parameters in the compute dtype: the same arrays where they have it."""
        if not self.num_cast_layers:
            return self._cast(params)
        layers = [
            self._call("cast_layer", params["blocks"], np.int32(number))["blocks"]
            for number in range(self.num_cast_layers)
        ]
        return {**self._cast(_without_layers(params)), "blocks": tuple(layers)}

    def zeros(self) -> Parameters:
        """Return gradients of zero."""
        return self._call("zeros")

    def forward(
        self,
        compute: Parameters,
        x: HostOrDeviceArray,
        targets: TargetArrays,
        position: HostOrDeviceArray,
    ) -> tuple[OutputArrays, Residuals]:
        """Return the output for one microbatch, and the residuals."""
        return self._call("forward", compute, x, targets, position)

    def evaluate(
        self, compute: Parameters, x: HostOrDeviceArray, targets: TargetArrays
    ) -> HostOrDeviceArray:
        """Return the output without dropout, and no residuals."""
        return self._call("evaluate", compute, x, targets)

    def backward(
        self,
        compute: Parameters,
        residuals: Residuals,
        cotangent: OutputArrays,
        gradients: Parameters,
    ) -> tuple[HostOrDeviceArray | None, Parameters]:
        """Return the gradient of the input and the accumulated `gradients`, which are donated."""
        return self._call("backward", compute, residuals, cotangent, gradients)

    def backward_input(
        self, compute: Parameters, residuals: Residuals, cotangent: OutputArrays
    ) -> tuple[HostOrDeviceArray | None, Carried]:
        """Return the gradient of the input, and what `backward_weight` reads."""
        assert self.carry_form is not None, "compiled for a schedule that splits no backward"
        of_input, crossing = self._call("backward_input", compute, residuals, cotangent)
        # Carried outside of the executable, which would copy the residuals that pass through it.
        return of_input, self.carry_form.carry(residuals, cotangent, crossing)

    def backward_weight(
        self, compute: Parameters, carried: Carried, gradients: Parameters
    ) -> Parameters:
        """Return the accumulated `gradients` of the weights, which are donated."""
        return self._call("backward_weight", compute, carried, gradients)

    def pack(self, gradients: Parameters) -> Buckets:
        """Return the gradients as one vector per reduction."""
        return self._call("pack", gradients)

    def square_norm(self, buckets: Buckets) -> HostOrDeviceArray:
        """Return the contribution of this stage to the squared global norm."""
        return self._call("square_norm", buckets)

    def update(
        self,
        params: Parameters,
        moments: optax.OptState,
        buckets: Buckets,
        square_norm: Scalar,
        scale: Scalar | None = None,
    ) -> tuple[Parameters, optax.OptState]:
        """Return the updated parameters and moments; those given are donated."""
        scales = () if scale is None else (scale,)
        return self._call("update", params, moments, buckets, square_norm, *scales)

    def join(self, vectors: tuple[np.ndarray, ...], updated: Parameters) -> Parameters:
        """Return the trained parameters from the gathered vectors and this replica's own pieces."""
        return self._call("join", vectors, updated)

    def _cast(self, params: Parameters) -> Parameters:
        return self._call("cast", params) if "cast" in self.executables else params

    def _call(self, name: str, *arguments: Any) -> Any:
        assert name in self.executables, (name, "is compiled for", tuple(self.executables))
        return self.executables[name](*arguments)


def _without_layers(params: Parameters) -> Parameters:
    return {name: part for name, part in params.items() if name != "blocks"}


def _nothing() -> None:
    """Do nothing before a compilation."""


def _each_time(key: Hashable, make: Callable[[], _Result]) -> _Result:  # noqa: ARG001
    return make()


def num_executables(functions: StageFunctions, *, ops: Collection[Op]) -> int:
    """Return the number of compilations of `compile_stage`."""
    # init, cast, zeros, forward, evaluate, pack, square_norm and update; cast_layer if unrolled.
    always = 8 + (functions.stage.loop is Loop.UNROLLED)
    split = 2 * (Op.BACKWARD_INPUT in ops)
    return always + (Op.BACKWARD in ops) + split + (functions.sharded is not None)


def compile_stage(
    functions: StageFunctions,
    *,
    ops: Collection[Op],
    precision: MatmulPrecision = MatmulPrecision.TF32,
    before_each: Callable[[], object] = _nothing,
    once: Once = _each_time,
    lowered: LoweredCache | None = None,
) -> CompiledStage:
    """Compile the functions of a stage that `ops` need: one compilation each, and none later.

    `precision` is that of the products of float32 matrices. The callback `before_each` is called
    before the wait for each of the `num_executables` compilations; `once` may return what it has
    kept of an equal function, of this precision. What the cache `lowered` has, is not traced.
    """
    products = use_products(os.environ)
    settings = LoweredFor(ops=ops, precision=precision, products=products)
    # JAX reads the precision while it traces; of this thread alone, since ranks may be threads.
    with (
        jax.default_matmul_precision(precision.jax_name),
        compile_threads(os.environ) as threads,
        offered(attention_of(functions, products)),
        opened_parts(lowered, functions, settings) as parts,
    ):
        options = compiler_options(functions.activation().dtype)
        compiler = Compiler(functions.stage.layout, threads, once, products, options, parts)
        return _compile_stage(functions, ops=ops, compiler=compiler, before_each=before_each)


def stage_compiler(
    environment: Mapping[str, str], *, has_hooks: bool
) -> Callable[..., CompiledStage]:
    """Return `compile_stage` for a rank, which reads what earlier starts have lowered.

    With hooks it reads nothing: they are code of the user, which may change what is traced.
    """
    return partial(
        compile_stage, lowered=None if has_hooks else LoweredCache(environment=environment)
    )


def _compile_stage(
    functions: StageFunctions,
    *,
    ops: Collection[Op],
    compiler: Compiler,
    before_each: Callable[[], object],
) -> CompiledStage:
    # Each function is compiled for the shapes, and on a mesh the shardings, that the one before it
    # returns: so no call of a step has to move an array.
    spec, layout = functions.spec, functions.stage.layout
    sharding = layout.whole
    # Each with what it reads alone: alike for whatever optimizer, batch, or other replicas.
    computes, reduces, starts = functions.computes, functions.reduces, functions.starts
    of_result, add = layout.of_result, partial(compiler.add, reads=computes)
    data, position, scalar = _inputs(functions, spec)

    out = of_result(starts.init)
    params, moments = compiler.add("init", starts.init, reads=starts, out=out)
    compute = _compile_cast(compiler, computes, params)
    gradients = add("zeros", computes.zeros, out=of_result(computes.zeros))
    forward = layout.entering(computes.forward, 1, 2)
    output, residuals = add("forward", forward, compute, *data, position, out=(sharding, None))
    evaluate = layout.entering(computes.evaluate, 1, 2)
    add("evaluate", evaluate, compute, *data, out=sharding)
    carry_form = _compile_backwards(
        compiler, computes, (compute, residuals, output), gradients, ops=ops, layout=layout
    )
    add = partial(compiler.add, reads=reduces)
    buckets = add("pack", reduces.pack, gradients, out=sharding)
    add("square_norm", reduces.square_norm, buckets, out=sharding)
    scalars = (scalar, scalar) if functions.scales_loss or functions.masked else (scalar,)
    _compile_update(compiler, functions, (params, moments, buckets, *scalars), layout=layout)
    is_scanned = functions.stage.loop is Loop.SCAN
    return CompiledStage(
        spec=spec,
        executables=compiler.executables(before_each),
        carry_form=carry_form,
        num_cast_layers=0 if is_scanned else len(functions.stage.layers),
    )


def _compile_cast(compiler: Compiler, functions: StageFunctions, params: Any) -> Any:
    """Compile the cast of parameters, and return the shapes of its result.

    Layers that are not scanned are cast by one executable, called for each: one of all slices would
    take XLA 10 s for 48 layers.
    """
    of_result, add = functions.stage.layout.of_result, partial(compiler.add, reads=functions)
    is_scanned = functions.stage.loop is Loop.SCAN
    whole = params if is_scanned else _without_layers(params)
    compute = add("cast", functions.cast, whole, out=of_result(functions.cast, whole))
    is_copy = compute == whole and not (is_scanned and functions.merges)
    if is_copy:  # the executable would copy all parameters, once a step
        compiler.unneeded.add("cast")
    if is_scanned:
        return compute
    arguments = params["blocks"], functions.stage.layout.shape((), jnp.int32)
    out = of_result(functions.cast_layer, *arguments)
    layer = add("cast_layer", functions.cast_layer, *arguments, out=out)["blocks"]
    return {**compute, "blocks": (layer,) * len(functions.stage.layers)}


def _inputs(
    functions: StageFunctions, spec: StageSpec
) -> tuple[tuple[Any, Any], jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Return the shapes of the arguments from outside: input and targets, position, a scalar."""
    work, shape = functions.work, spec.layout.shape
    x = work.inputs if spec.is_first else spec.received
    targets: Any = shape(work.targets.shape, work.targets.dtype) if spec.is_last else None
    if work.packed or spec.reads_tokens:
        tokens = shape(work.inputs.shape, work.inputs.dtype)
        targets = SampleParts(
            segments=tokens if work.packed else None,
            tokens=tokens if spec.reads_tokens else None,
            targets=targets,
        )
    data = (shape(x.shape, x.dtype), targets)
    return data, shape((2,), jnp.int32), shape((), spec.loss_cotangent.dtype)


def _compile_backwards(
    compiler: Compiler,
    functions: StageFunctions,
    given: tuple[Any, Any, Any],
    gradients: Any,
    *,
    ops: Collection[Op],
    layout: StageLayout,
) -> CarryForm | None:
    """Compile the backwards among `ops`, `given` the shapes of compute, residuals, cotangent.

    Gradients are donated: a step accumulates all its microbatches in one set of arrays. Residuals
    are not, since no output has their shapes.
    """
    sharding, of_gradients = layout.whole, layout.of(gradients)
    add = partial(compiler.add, reads=functions)
    fast = fast_backwards(functions, compiler.products)
    if Op.BACKWARD in ops:
        backward, out = layout.entering(functions.backward, 2), (sharding, of_gradients)
        add("backward", fast(backward), *given, gradients, donate=(3,), out=out)
    if Op.BACKWARD_INPUT not in ops:
        return None
    compute, residuals, cotangent = given
    # What is carried between the halves is that of one split.
    halves = compiler.once(("split", functions), lambda: compiler.halves(functions, given))
    input_half = layout.entering(halves.input_half, 2)
    _, crossing = add("backward_input", input_half, *given, out=(sharding, None))
    carried = halves.carry_form.carry(residuals, cotangent, crossing)
    weight_half = (fast(halves.weight_half), compute, carried, gradients)
    add("backward_weight", *weight_half, donate=(2,), out=of_gradients)
    return halves.carry_form


def attention_of(functions: StageFunctions, products: Products) -> AttentionCalls | None:
    """Return the calls of attention on offer while a stage is traced, None for products."""
    # XLA divides products among the devices of a mesh, and no custom calls.
    is_alone = functions.stage.layout.mesh is None and jax.default_backend() == "cpu"
    has_calls = functions.activation().dtype in FORMATS
    return use_attention(products) if is_alone and has_calls else None


def fast_backwards(functions: StageFunctions, products: Products) -> Callable[[Callable], Callable]:
    """Return what makes the products of a backward's weight gradients fast on this device."""
    on_cpu = jax.default_backend() == "cpu"
    # The devices of a mesh have parts of the factors, which XLA moves as it chooses.
    if functions.stage.layout.mesh is not None:
        return lambda backward: backward
    # A BLAS transposes a factor while it packs it.
    by_blas = products.library is not None and functions.activation().dtype in FORMATS
    return partial(fast_row_products, copied=on_cpu and not by_blas)


def _compile_update(
    compiler: Compiler, functions: StageFunctions, given: tuple[Any, ...], *, layout: StageLayout
) -> None:
    """Compile the update, and with a sharded optimizer what makes whole parameters of pieces."""
    params, moments, *_ = given
    sharded, add = functions.sharded, partial(compiler.add, reads=functions)
    if sharded is None:
        out = layout.of((params, moments))
        add("update", functions.update, *given, donate=(0, 1), out=out)
        return
    assert layout.mesh is None, "a sharded optimizer and a mesh are not combined"
    # Parameters are not donated: the update returns pieces, which have other shapes.
    updated, _ = add("update", functions.update, *given, donate=(1,))
    dtype = jax.tree.leaves(params)[0].dtype
    vectors = tuple(layout.shape((size,), dtype) for size in sharded.sizes)
    add("join", functions.join, vectors, updated)
