"""A stage of the runtime of which only the functions that are timed compile."""

import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.attention_calls import offered
from jaxpipe.profile.timing import Clock, time_calls
from jaxpipe.runtime.blas.chosen_products import Products
from jaxpipe.runtime.blas.product_lowering import use_products
from jaxpipe.runtime.stage.compile import attention_of, fast_backwards
from jaxpipe.runtime.stage.compiler import compiler_options
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.schedule import Op

_SMALL = 0.02
"""Of the random values of parameters: any numbers that neither overflow nor vanish."""

_MOST_IN_FLIGHT, _CACHED_BYTES = 3, 2**26
"""Microbatches between a forward and its backward, as in a pipeline: what a forward keeps has left
the caches when its backward reads it. There are as many as exceed the caches with their bytes."""


class Program:
    """A function of a stage, lowered; `compile` makes it callable.

    `options` are those of XLA with which a rank compiles it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *shapes: Any,
        options: Mapping[str, str | bool],
        donate: tuple[int, ...] = (),
    ) -> None:
        traced = jax.jit(function, donate_argnums=donate).trace(*shapes)
        self.results = traced.out_info
        """The shapes of what it returns."""
        self._lowered, self._options = traced.lower(), dict(options)
        self.compiled: jax.stages.Compiled | None = None

    def compile(self) -> None:
        """Compile it, unless it is compiled."""
        self.compiled = self.compiled or self._lowered.compile(self._options)

    def __call__(self, *arguments: Any) -> Any:
        """Return the results for arrays of the shapes."""
        assert self.compiled is not None
        return self.compiled(*arguments)


class BriefStage:
    """The shapes and programs of a stage; `BusyStage` has its arrays, and calls them."""

    def __init__(self, functions: StageFunctions) -> None:
        self.functions = functions
        products = use_products(os.environ)
        with offered(attention_of(functions, products)):
            self._lower(functions, products)

    def _lower(self, functions: StageFunctions, products: Products) -> None:
        work, spec = functions.work, functions.spec
        self.options = compiler_options(functions.activation().dtype)
        program = partial(Program, options=self.options)
        params, _ = jax.eval_shape(functions.init)
        self.compute = jax.eval_shape(functions.cast, params)
        self.gradients = jax.eval_shape(functions.zeros)
        self.inputs = work.inputs if spec.is_first else spec.received
        self.targets = work.targets if spec.is_last else None
        position = jax.ShapeDtypeStruct((2,), np.int32)
        self.forward = program(functions.forward, self.compute, self.inputs, self.targets, position)
        self.output, self.residuals = self.forward.results
        self.cotangent = spec.loss_cotangent if spec.is_last else _cotangent(self.output, spec)
        backward = (self.compute, self.residuals, self.cotangent)
        fast = fast_backwards(functions, products)
        self.backward = program(fast(functions.backward), *backward, self.gradients, donate=(3,))
        self.split = functions.split_backward(*backward)
        self.input_half = program(partial(functions.input_half, self.split), *backward)
        _, crossing = self.input_half.results
        carried = self.split.carry(self.residuals, self.cotangent, crossing)
        self.weight_half = program(
            fast(functions.backward_weight), self.compute, carried, self.gradients, donate=(2,)
        )

    @property
    def programs(self) -> tuple[Program, ...]:
        """What is to be compiled before a `BusyStage` is made."""
        return (self.forward, self.backward, self.input_half, self.weight_half)

    @property
    def kept_bytes(self) -> int:
        """The bytes that a forward keeps for its backward."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.residuals))


class StageWeights:
    """The parameters of a stage and their gradients, for microbatches of any size."""

    def __init__(self, stage: BriefStage) -> None:
        arrays = _Arrays()
        self.compute = arrays.filled(stage.compute)
        self.gradients = arrays.filled(stage.gradients)


class BusyStage:
    """A stage with its arrays; `seconds` times its forward and its backwards."""

    def __init__(self, stage: BriefStage, weights: StageWeights) -> None:
        self._stage, self._weights = stage, weights
        arrays = _Arrays()
        spec, vocabulary = stage.functions.spec, stage.functions.stage.model.vocabulary
        fill = partial(arrays.tokens, below=vocabulary) if spec.is_first else arrays.filled
        targets = None if stage.targets is None else arrays.tokens(stage.targets, vocabulary)
        self._given = (weights.compute, fill(stage.inputs), targets, np.zeros(2, np.int32))
        output, residuals = stage.forward(*self._given)
        self._cotangent = spec.loss_cotangent if spec.is_last else _cotangent(output, spec)
        self._in_flight = deque([residuals])
        self._num_in_flight = min(_MOST_IN_FLIGHT, ceil(_CACHED_BYTES / max(1, stage.kept_bytes)))

    def seconds(self, clock: Clock) -> Mapping[Op, float]:
        """Return the seconds of a forward, a backward, and one in halves after another forward."""
        timed, weights = _Timed(clock), self._weights
        while len(self._in_flight) < self._num_in_flight:
            self._in_flight.append(self._stage.forward(*self._given)[1])
        _, residuals = timed(Op.FORWARD, self._stage.forward, *self._given)
        self._in_flight.append(residuals)
        backward = (weights.compute, self._in_flight.popleft(), self._cotangent)
        # `gradients` are donated: each call continues with the result of the last.
        _, weights.gradients = timed(
            Op.BACKWARD, self._stage.backward, *backward, weights.gradients
        )
        # JAX returns before a result is computed: the next call would be timed with the rest of it.
        _, residuals = jax.block_until_ready(self._stage.forward(*self._given))
        self._in_flight.append(residuals)
        residuals = self._in_flight.popleft()
        backward = (weights.compute, residuals, self._cotangent)
        _, crossing = timed(Op.BACKWARD_INPUT, self._stage.input_half, *backward)
        carried = self._stage.split.carry(residuals, self._cotangent, crossing)
        weights.gradients = timed(
            Op.BACKWARD_WEIGHT, self._stage.weight_half, weights.compute, carried, weights.gradients
        )
        return timed.seconds


class BriefUpdate:
    """All that a step of a stage does once: the programs of its optimizer."""

    def __init__(self, stage: BriefStage) -> None:
        functions = stage.functions
        program = partial(Program, options=stage.options)
        self._params, self._moments = jax.eval_shape(functions.init)
        self._gradients = stage.gradients
        self._pack = program(functions.pack, self._gradients)
        buckets = self._pack.results
        self._norm = program(functions.square_norm, buckets)
        one = jax.ShapeDtypeStruct((), np.float32)
        state = (self._params, self._moments)
        self._update = program(functions.update, *state, buckets, one, donate=(0, 1))
        self._cast, self._zeros = program(functions.cast, self._params), program(functions.zeros)

    @property
    def programs(self) -> tuple[Program, ...]:
        """What is to be compiled before `seconds` is called."""
        return (self._pack, self._norm, self._update, self._cast, self._zeros)

    def seconds(self, clock: Clock) -> float:
        """Return the seconds of all five programs, one after the other."""
        arrays = _Arrays()
        moments = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), self._moments)
        state = [arrays.filled(self._params), moments]
        gradients = arrays.filled(self._gradients)

        def call() -> Any:
            packed = self._pack(gradients)
            square_norm = np.float32(self._norm(packed))
            state[:] = self._update(*state, packed, square_norm)
            return state, self._cast(state[0]), self._zeros()

        return time_calls(call, warmup=1, repeats=7, budget_s=1.0, clock=clock).median_s


class _Arrays:
    """Arrays of random values, the same for each object."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def filled(self, shapes: Any) -> Any:
        """Return arrays of the shapes of a tree."""
        return jax.tree.map(self._normal, shapes)

    def tokens(self, shape: jax.ShapeDtypeStruct, below: int) -> np.ndarray:
        """Return numbers of tokens."""
        return self._random.integers(0, below, shape.shape).astype(shape.dtype)

    def _normal(self, shape: jax.ShapeDtypeStruct) -> jax.Array:
        values = self._random.standard_normal(shape.shape, np.float32) * np.float32(_SMALL)
        return jnp.asarray(values).astype(shape.dtype)


class _Timed:
    """Calls that are timed, by their op."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds: dict[Op, float] = {}

    def __call__(self, op: Op, function: Callable[..., Any], *arguments: Any) -> Any:
        start_s = self._clock()
        result = jax.block_until_ready(function(*arguments))
        self.seconds[op] = self._clock() - start_s
        return result


def call_seconds(weights: StageWeights, clock: Clock) -> float:
    """Return the seconds of a call that computes nothing with the weights of a stage."""
    given = (weights.compute, weights.gradients)
    program = Program(lambda *_: jnp.zeros(()), *given, options={})
    program.compile()
    call = partial(program, *given)
    return time_calls(call, warmup=2, repeats=50, budget_s=0.2, clock=clock).median_s


def copy_seconds(num_bytes: int, clock: Clock) -> float:
    """Return the seconds of a copy in memory, as messages within a host take two."""
    source = np.ones(num_bytes, np.uint8)
    target = np.zeros_like(source)
    call = partial(np.copyto, target, source)
    return time_calls(call, warmup=2, repeats=20, budget_s=0.2, clock=clock).median_s


def _cotangent(output: Any, spec: Any) -> Any:
    """Return arrays of the shapes of a gradient of the output."""
    return (output[0], spec.loss_cotangent) if isinstance(output, tuple) else output
