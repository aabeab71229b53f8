"""Measurement of one part of a model: the compiled functions of a stage, in the order of a step.

::

    forward ──► residuals ──► backward                             one microbatch, again and again
    forward ──► residuals ──► backward-input ──► backward-weight   the same, in two halves
    cast, zeros, pack, norm, update                                once a step: together, `update`

In a step the next microbatch writes new residuals, and other layers come between: calls that are
repeated alone find their arrays in the cache, and take 10 to 30 % less time on a CPU.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.profile.measure_config import MeasureConfig
from jaxpipe.profile.timing import Clock, Timing, time_in_turn
from jaxpipe.runtime.stage.compile import CompiledStage, compile_stage
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.schedule import Op

_OPS = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
TIMED = (*_OPS, Op.UPDATE)
"""The timed operations of a part. `update` is all that a step does once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCosts:
    """The costs of a part for one microbatch.

    `forward_flops` and `backward_flops` are counted, including recomputation. `kept_bytes` is the
    size of the residuals of one forward; `compiled_bytes` the largest memory of one of its compiled
    functions, including arguments and results; `live_bytes` the memory between a forward and its
    backward: parameters, moments, gradients and residuals. `device_peak_bytes` is the peak memory
    of this process on the device so far, if the device reports it.
    """

    name: str
    timings: dict[Op, Timing]
    parameters: int
    kept_bytes: int
    compiled_bytes: int
    live_bytes: int
    device_peak_bytes: int | None
    forward_flops: int
    backward_flops: int

    @property
    def forward_s(self) -> float:
        """The median seconds of a forward."""
        return self.timings[Op.FORWARD].median_s

    @property
    def backward_s(self) -> float:
        """The median seconds of a whole backward."""
        return self.timings[Op.BACKWARD].median_s

    @property
    def flops_per_s(self) -> float:
        """The FLOP/s of a forward and a backward together."""
        return (self.forward_flops + self.backward_flops) / (self.forward_s + self.backward_s)

    def divided(self, number: int) -> "PartCosts":
        """Return the costs of one of `number` equal layers in a row.

        Arrays that exist once for the row, such as its input, are divided too.
        """
        return replace(
            self,
            timings={op: timing.divided(number) for op, timing in self.timings.items()},
            parameters=self.parameters // number,
            kept_bytes=self.kept_bytes // number,
            compiled_bytes=self.compiled_bytes // number,
            live_bytes=self.live_bytes // number,
            forward_flops=self.forward_flops // number,
            backward_flops=self.backward_flops // number,
        )


MEASUREMENTS_OF_PART = 4
"""How often `measure_part` says what it does."""


def measure_part(
    functions: StageFunctions,
    *,
    name: str,
    forward_flops: int,
    backward_flops: int,
    settings: MeasureConfig,
    clock: Clock,
    observe: Callable[[str], None],
) -> PartCosts:
    """Compile the functions of a stage, and measure them on random input.

    `observe` is called with a description of each step before it.

    Cost: one compilation of each function, and `warmup + repeats` calls of each.
    """
    observe(f"{name}: compiling")
    # Arrays in unreachable cycles would be freed in between, and make the difference negative.
    gc.collect()
    before = _live_bytes()
    compiled = compile_stage(functions, ops=_OPS, precision=settings.matmul_precision)
    state = _hold(functions, compiled, seed=settings.seed)
    timed = partial(
        time_in_turn,
        warmup=settings.warmup,
        repeats=settings.repeats,
        budget_s=settings.budget_s,
        clock=clock,
    )
    # Before timing: the update frees or donates these arrays.
    live_bytes = _live_bytes() - before
    parameters, kept_bytes = _size(state.params), _num_bytes(state.residuals)
    microbatch = _Microbatch(compiled, state)
    observe(f"{name}: forward and backward")
    forward, backward = timed((microbatch.forward, microbatch.backward))
    observe(f"{name}: backward in two halves")
    _, of_input, of_weight = timed(
        (microbatch.forward, microbatch.backward_input, microbatch.backward_weight)
    )
    observe(f"{name}: update")
    (update,) = timed((_update(compiled, state),))
    stats = jax.local_devices()[0].memory_stats() or {}
    return PartCosts(
        name=name,
        timings=dict(zip(TIMED, (forward, backward, of_input, of_weight, update), strict=True)),
        parameters=parameters,
        kept_bytes=kept_bytes,
        compiled_bytes=_compiled_bytes(compiled),
        live_bytes=live_bytes,
        device_peak_bytes=stats.get("peak_bytes_in_use"),
        forward_flops=forward_flops,
        backward_flops=backward_flops,
    )


@dataclass(slots=True, kw_only=True)
class _Held:
    """The arrays of a rank between the forward and the backward of a microbatch."""

    params: Any
    moments: Any
    compute: Any
    given: tuple[Any, Any, Any]
    residuals: Any
    cotangent: Any
    gradients: Any


def _hold(functions: StageFunctions, compiled: CompiledStage, *, seed: int) -> _Held:
    stage, work = functions.stage, functions.work
    random = np.random.default_rng(seed)
    # Label 0 for all: its loss costs as much as that of any other class.
    num_targets = stage.model.vocabulary if work.labelled is None else 1
    samples, targets = (
        jnp.asarray(random.integers(0, below, array.shape), array.dtype)
        for array, below in ((work.inputs, stage.model.vocabulary), (work.targets, num_targets))
    )
    activation = compiled.spec.activation
    hidden = jnp.asarray(random.normal(size=activation.shape), activation.dtype)
    params, moments = compiled.init()
    compute = compiled.cast(params)
    given = (
        samples if stage.is_first else hidden,
        targets if stage.is_last else None,
        jnp.zeros(2, jnp.int32),
    )
    output, residuals = compiled.forward(compute, *given)
    return _Held(
        params=params,
        moments=moments,
        compute=compute,
        given=given,
        residuals=residuals,
        # An output has the shape and dtype of its own gradient.
        cotangent=_cotangent(compiled, output),
        gradients=compiled.zeros(),
    )


def _cotangent(compiled: CompiledStage, output: Any) -> Any:
    """Return arrays of the shapes of a gradient of the output."""
    if compiled.spec.is_last:
        return compiled.spec.loss_cotangent
    return (output[0], compiled.spec.loss_cotangent) if isinstance(output, tuple) else output


@dataclass(slots=True)
class _Microbatch:
    """The calls for one microbatch: each uses up what the one before has kept."""

    compiled: CompiledStage
    arrays: _Held
    carried: Any = None

    def forward(self) -> Any:
        microbatch = self.arrays
        output, microbatch.residuals = self.compiled.forward(microbatch.compute, *microbatch.given)
        return output, microbatch.residuals

    def backward(self) -> Any:
        microbatch = self.arrays
        residuals, microbatch.residuals = microbatch.residuals, None
        # `gradients` are donated: each call must continue with the result of the last.
        of_input, microbatch.gradients = self.compiled.backward(
            microbatch.compute, residuals, microbatch.cotangent, microbatch.gradients
        )
        return of_input, microbatch.gradients

    def backward_input(self) -> Any:
        microbatch = self.arrays
        residuals, microbatch.residuals = microbatch.residuals, None
        of_input, self.carried = self.compiled.backward_input(
            microbatch.compute, residuals, microbatch.cotangent
        )
        return of_input, self.carried

    def backward_weight(self) -> Any:
        microbatch = self.arrays
        carried, self.carried = self.carried, None
        microbatch.gradients = self.compiled.backward_weight(
            microbatch.compute, carried, microbatch.gradients
        )
        return microbatch.gradients


def _update(compiled: CompiledStage, state: _Held) -> Callable[[], Any]:
    """Return the call of all that a step does once, which must be last: it donates parameters."""
    # As on a rank: it does not outlive the backwards, and would add to the peak.
    state.residuals = None

    def call() -> Any:
        buckets = compiled.pack(state.gradients)
        state.gradients = state.compute = None
        # A step waits for the norm once; the calls of a part do not.
        square_norm = compiled.square_norm(buckets).astype(jnp.float32)
        state.params, state.moments = compiled.update(
            state.params, state.moments, buckets, square_norm
        )
        # The next step's first calls.
        state.compute, state.gradients = compiled.cast(state.params), compiled.zeros()
        return state.params, state.moments, state.compute, state.gradients

    return call


def _compiled_bytes(compiled: CompiledStage) -> int:
    names = ("forward", "backward", "backward_input", "backward_weight", "update")
    return max(_needed_bytes(compiled.executables[name]) for name in names)


def _needed_bytes(function: Any) -> int:
    analysis = function.memory_analysis()
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        # Aliased outputs lie in arguments, which are counted.
        - analysis.alias_size_in_bytes
    )


def _live_bytes() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def _num_bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
