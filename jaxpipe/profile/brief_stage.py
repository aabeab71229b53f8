"""A stage of the runtime of which only the functions that are timed compile."""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.profile.timing import Clock, time_calls
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.schedule import Op

_SMALL = 0.02
"""Of the random values of parameters: any numbers that neither overflow nor vanish."""

_MOST_IN_FLIGHT, _CACHED_BYTES = 3, 2**26
"""Microbatches between a forward and its backward, as in a pipeline: what a forward keeps has left
the caches when its backward reads it. There are as many as exceed the caches with their bytes."""


class BriefStage:
    """A stage with its arrays; `seconds` times its forward and its backwards."""

    def __init__(self, functions: StageFunctions) -> None:
        self._functions = functions
        self._random = np.random.default_rng(0)
        params, _ = jax.eval_shape(functions.init)
        self._compute = self._filled(jax.eval_shape(functions.cast, params))
        self._gradients = self._filled(jax.eval_shape(functions.zeros))
        work, spec = functions.work, functions.spec
        vocabulary = functions.stage.model.vocabulary
        x = (
            self._tokens(work.inputs, vocabulary)
            if spec.is_first
            else self._filled(spec.activation)
        )
        targets = self._tokens(work.targets, vocabulary) if spec.is_last else None
        self._given = (self._compute, x, targets, np.zeros(2, np.int32))
        self._forward = compiled(functions.forward, *self._given)
        output, residuals = self._forward(*self._given)
        self.kept_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(residuals))
        self._cotangent = spec.loss_cotangent if spec.is_last else _cotangent(output, spec)
        backward = (self._compute, residuals, self._cotangent)
        self._backward = compiled(functions.backward, *backward, self._gradients, donate=(3,))
        self._in_flight = deque([residuals])
        self._num_in_flight = min(_MOST_IN_FLIGHT, ceil(_CACHED_BYTES / max(1, self.kept_bytes)))
        self._split = functions.split_backward(*backward)
        self._input_half = compiled(partial(functions.input_half, self._split), *backward)
        _, crossing = self._input_half(*backward)
        carried = self._split.carry(residuals, self._cotangent, crossing)
        self._weight_half = compiled(
            functions.backward_weight, self._compute, carried, self._gradients, donate=(2,)
        )

    def seconds(self, clock: Clock) -> Mapping[Op, float]:
        """Return the seconds of a forward, a backward, and one in halves after another forward."""
        timed = _Timed(clock)
        while len(self._in_flight) < self._num_in_flight:
            self._in_flight.append(self._forward(*self._given)[1])
        _, residuals = timed(Op.FORWARD, self._forward, *self._given)
        self._in_flight.append(residuals)
        backward = (self._compute, self._in_flight.popleft(), self._cotangent)
        # `gradients` are donated: each call continues with the result of the last.
        _, self._gradients = timed(Op.BACKWARD, self._backward, *backward, self._gradients)
        # JAX returns before a result is computed: the next call would be timed with the rest of it.
        _, residuals = jax.block_until_ready(self._forward(*self._given))
        self._in_flight.append(residuals)
        residuals = self._in_flight.popleft()
        backward = (self._compute, residuals, self._cotangent)
        _, crossing = timed(Op.BACKWARD_INPUT, self._input_half, *backward)
        carried = self._split.carry(residuals, self._cotangent, crossing)
        self._gradients = timed(
            Op.BACKWARD_WEIGHT, self._weight_half, self._compute, carried, self._gradients
        )
        return timed.seconds

    def call_seconds(self, clock: Clock) -> float:
        """Return the seconds of a call that computes nothing with the arrays of the stage."""
        given = (self._compute, self._gradients)
        call = partial(compiled(lambda *_: jnp.zeros(()), *given), *given)
        return time_calls(call, warmup=2, repeats=50, budget_s=0.2, clock=clock).median_s

    def update_seconds(self, clock: Clock) -> float:
        """Return the seconds of all that a step does once: five calls."""
        functions = self._functions
        shapes, moment_shapes = jax.eval_shape(functions.init)
        params, moments = self._filled(shapes), jax.tree.map(_zeros, moment_shapes)
        pack = compiled(functions.pack, self._gradients)
        buckets = pack(self._gradients)
        norm = compiled(functions.square_norm, buckets)
        one = np.float32(1.0)
        update = compiled(functions.update, params, moments, buckets, one, donate=(0, 1))
        cast, zeros = compiled(functions.cast, params), compiled(functions.zeros)
        state = [params, moments]

        def call() -> Any:
            packed = pack(self._gradients)
            square_norm = np.float32(norm(packed))
            state[:] = update(*state, packed, square_norm)
            self._compute, self._gradients = cast(state[0]), zeros()
            return state, self._compute, self._gradients

        return time_calls(call, warmup=1, repeats=7, budget_s=1.0, clock=clock).median_s

    def _filled(self, shapes: Any) -> Any:
        return jax.tree.map(self._normal, shapes)

    def _normal(self, shape: Any) -> jax.Array:
        values = self._random.standard_normal(shape.shape, np.float32) * np.float32(_SMALL)
        return jnp.asarray(values).astype(shape.dtype)

    def _tokens(self, shape: jax.ShapeDtypeStruct, below: int) -> np.ndarray:
        return self._random.integers(0, below, shape.shape).astype(shape.dtype)


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


def compiled(function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()) -> Any:
    """Return a function compiled for these arguments, as the runtime compiles it."""
    return jax.jit(function, donate_argnums=donate).lower(*arguments).compile()


def copy_seconds(num_bytes: int, clock: Clock) -> float:
    """Return the seconds of a copy in memory, as messages within a host take two."""
    source = np.ones(num_bytes, np.uint8)
    target = np.zeros_like(source)
    call = partial(np.copyto, target, source)
    return time_calls(call, warmup=2, repeats=20, budget_s=0.2, clock=clock).median_s


def _zeros(shape: Any) -> jax.Array:
    return jnp.zeros(shape.shape, shape.dtype)


def _cotangent(output: Any, spec: Any) -> Any:
    """Return arrays of the shapes of a gradient of the output."""
    return (output[0], spec.loss_cotangent) if isinstance(output, tuple) else output
