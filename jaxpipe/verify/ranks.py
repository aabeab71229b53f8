"""All ranks of a plan as threads of this process, and what they compute.

Their programs, stages, all-reduces and updates are those of `jaxpipe train`; what they hand from
one to the next is kept beside.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import numpy as np

from jaxpipe.comm import Transport, closing, run_ranks
from jaxpipe.comm.collective.wire_format import is_floating
from jaxpipe.plan import Plan
from jaxpipe.runtime.checkpoint import flatten
from jaxpipe.runtime.hooks import Hooks
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.outer.outer_loop import OuterLoop
from jaxpipe.runtime.outer.outer_snapshot import outer_snapshot, start_outer
from jaxpipe.runtime.outer.outer_tensor_names import MOMENTUM
from jaxpipe.runtime.stage.calls import StageCalls
from jaxpipe.runtime.stage.compile import CompiledStage
from jaxpipe.runtime.stage.gradient_buckets import Buckets, unpack
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.stage.trained import trained
from jaxpipe.runtime.step.batch import train_step_batch
from jaxpipe.runtime.step.worker import Worker, copied_errors, settle_errors, start
from jaxpipe.runtime.train_snapshot import restore_state, whole_moments
from jaxpipe.runtime.watchdog.of_job import no_watchdog
from jaxpipe.verify.one_device import Tensors

Compiler = Callable[..., CompiledStage]


@dataclass(slots=True)
class Boundaries:
    """The arrays at the boundaries of the stages of a rank in a step.

    `outputs[stage, microbatch]` is the activation that a forward returns, `of_inputs` the gradient
    that a backward returns; microbatches count over all replicas.
    """

    outputs: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    of_inputs: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """What a rank has after a step: sums over all ranks, and tensors of its own stages.

    Gradients are those of the mean loss, before clipping. `tensors` are parameters and moments
    after the update, `samples` what the rank has read, None if it reads none.
    """

    loss: float
    norm: float
    num_targets: float
    updated_norm: float
    gradients: Tensors
    tensors: Tensors
    samples: np.ndarray | None
    boundaries: Boundaries


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """The steps of a rank, the parameters it began with, and its held-out loss at the end.

    `outer_momentum` is that of outer steps, on one rank of each stage.
    """

    rank: int
    first: Tensors
    steps: tuple[RankStep, ...]
    held_out_loss: float
    outer_momentum: Tensors = field(default_factory=dict)


def train_ranks(job: Job, *, compiler: Compiler) -> list[RankResult]:
    """Train all steps as all ranks of the plan, and return their results in order.

    Raises:
        JaxpipeError: a rank failed; the first error of any.
    """

    def work(transport: Transport) -> RankResult:
        with closing(transport):
            return _train(job, transport, compiler)

    return run_ranks(job.plan.num_ranks, work)


def _train(job: Job, transport: Transport, compiler: Compiler) -> RankResult:
    samples = _ReadSamples()
    worker = _started(job, transport, samples, compiler)
    outer, state = _outer_and_state(worker)
    first = _tensors(worker, state)
    steps = []
    for step in range(job.train.steps):
        boundaries = Boundaries()
        gradients, totals = _gradients(worker, state, boundaries, step=step)
        state, updated = worker.train_step(state, step=step)
        if outer is not None:
            state, _ = outer.after_step(state, done=step + 1, stops=0.0)
        steps.append(
            RankStep(
                loss=totals.mean_loss,
                norm=float(np.sqrt(totals.square_norm)),
                num_targets=totals.targets,
                updated_norm=float(np.sqrt(updated.square_norm)),
                gradients=gradients,
                tensors=_tensors(worker, state),
                samples=samples.tokens,
                boundaries=boundaries,
            )
        )
    num_steps, momentum = job.train.steps, {}
    if outer is None:
        held_out_loss = worker.eval_loss(state)
    else:
        held_out_loss = outer.eval_loss(state, done=num_steps)
        momentum = _outer_momentum(outer, state, step=num_steps)
        outer.close(timeout_s=job.run.timeout_s)
    worker.close()
    return RankResult(
        rank=transport.rank,
        first=first,
        steps=tuple(steps),
        held_out_loss=held_out_loss,
        outer_momentum=momentum,
    )


def _started(job: Job, transport: Transport, hooks: Hooks, compiler: Compiler) -> Worker:
    """Return the rank, with codecs that encode float64, in which all of this computes."""
    watch = no_watchdog(transport.rank)
    worker = start(job, transport, watch, hooks=hooks, compiler=compiler)
    interpreter = worker.interpreter
    interpreter.messages.encodes = is_floating
    wire = replace(interpreter.wire, encodes=is_floating)
    return replace(worker, interpreter=replace(interpreter, wire=wire))


def _outer_and_state(worker: Worker) -> tuple[OuterLoop | None, TrainState]:
    """Return the outer loop, if there is one, and the state before the first step."""
    if not worker.whole.outer.is_on:
        return None, restore_state(worker, None)[0]
    outer, state, _ = start_outer(worker, None)
    wire = replace(outer.exchange.wire, encodes=is_floating)
    outer.exchange = replace(outer.exchange, wire=wire)
    return outer, state


def _outer_momentum(outer: OuterLoop, state: TrainState, *, step: int) -> Tensors:
    """Return the momentum of outer steps as a checkpoint has it."""
    shards = outer_snapshot(outer, state, step=step).shards.values()
    return {
        name.removeprefix(MOMENTUM): tensor
        for shard in shards
        for name, tensor in shard.items()
        if name.startswith(MOMENTUM)
    }


class _ReadSamples(Hooks):
    """Keeps the samples of the last step."""

    def __init__(self) -> None:
        self.tokens: np.ndarray | None = None

    def after_read(self, plan: Plan, tokens: np.ndarray | None, *, rank: int, step: int) -> None:  # noqa: ARG002  a hook
        self.tokens = tokens


def _gradients(
    worker: Worker, state: TrainState, boundaries: Boundaries, *, step: int
) -> tuple[Tensors, Any]:
    """Return the reduced gradients of a step by their names, and the totals of the step."""
    rank, interpreter = worker.everyone.rank, worker.interpreter
    recorded = {
        stage: cast(StageCalls, RecordedCalls(calls, stage, boundaries))
        for stage, calls in worker.calls.items()
    }
    batch = train_step_batch(worker.whole, rank=rank, step=step)
    residuals = copied_errors(interpreter.reducer)
    buckets, totals = replace(interpreter, calls=recorded).gradients(
        worker.train_program, state, batch
    )
    # The step itself, which follows, reads those that this has consumed.
    settle_errors(interpreter.reducer, residuals, is_taken=False, ratio=1.0)
    loss_scale = 1.0 if state.loss_scale is None else state.loss_scale.scale
    spec = next(iter(worker.calls.values())).spec
    # Gradients are those of the sum over targets, times this; `update` divides by the rest of it.
    cotangent = float(spec.loss_cotangent) * loss_scale
    scale = cotangent * max(totals.targets, 1.0) if spec.masked else loss_scale
    boundaries.of_inputs = {key: array / scale for key, array in boundaries.of_inputs.items()}
    named: Tensors = {}
    for stage, vectors in buckets.items():
        named |= _named(worker, state, stage, vectors)
    return {name: tensor / scale for name, tensor in named.items()}, totals


def _named(worker: Worker, state: TrainState, stage: int, buckets: Buckets) -> Tensors:
    """Return the gradients of a stage by their names."""
    job, plan, rank = worker.job, worker.job.plan, worker.transport.rank
    replica = plan.replica(rank)
    functions = job.functions(stage=stage, rank=rank)
    tree = unpack(
        jax.tree.map(np.asarray, buckets),
        trained(job.model, state.stages[stage].params),
        tied=functions.stage.has_tied_bucket,
        segments=plan.segment_layers(replica=replica, stage=stage),
    )
    return flatten(tree, first_layer=plan.layers(stage, replica=replica).start)


def _tensors(worker: Worker, state: TrainState) -> Tensors:
    """Return copies of the parameters and moments of a rank; all ranks call this."""
    plan, rank = worker.job.plan, worker.transport.rank
    tensors: Tensors = {}
    for stage, stage_state in state.stages.items():
        first_layer = plan.layers(stage, replica=plan.replica(rank)).start
        tensors |= flatten(stage_state.params, first_layer=first_layer)
        for moment, tree in whole_moments(worker, stage_state, stage=stage).items():
            tensors |= flatten(tree, first_layer=first_layer, prefix=f"{moment}.")
    # The next step donates their memory.
    return {name: np.array(tensor) for name, tensor in tensors.items()}


class RecordedCalls:
    """`StageCalls` that keep what crosses the boundaries of the stage; all else is passed on."""

    def __init__(self, calls: StageCalls, stage: int, boundaries: Boundaries) -> None:
        self._calls = calls
        self._stage = stage
        self._boundaries = boundaries
        self._microbatches: dict[int, tuple[int, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        """Return what the stage has."""
        return getattr(self._calls, name)

    def forward(self, compute: Any, x: Any, targets: Any, position: Any) -> tuple[Any, Any]:
        """Call `forward`, and keep its activation."""
        output, residuals = self._calls.forward(compute, x, targets, position)
        microbatch = int(position[1])
        # With the residuals themselves: another object could get the number of one that is gone.
        self._microbatches[id(residuals)] = microbatch, residuals
        if not self._calls.spec.is_last:
            activation = output[0] if isinstance(output, tuple) else output
            self._boundaries.outputs[self._stage, microbatch] = np.array(activation)
        return output, residuals

    def backward(
        self, compute: Any, residuals: Any, cotangent: Any, gradients: Any
    ) -> tuple[Any, Any]:
        """Call `backward`, and keep the gradient of its input."""
        microbatch = self._microbatches.pop(id(residuals))[0]
        of_input, gradients = self._calls.backward(compute, residuals, cotangent, gradients)
        self._keep(microbatch, of_input)
        return of_input, gradients

    def backward_input(self, compute: Any, residuals: Any, cotangent: Any) -> tuple[Any, Any]:
        """Call `backward_input`, and keep the gradient of its input."""
        microbatch = self._microbatches.pop(id(residuals))[0]
        of_input, carried = self._calls.backward_input(compute, residuals, cotangent)
        self._keep(microbatch, of_input)
        return of_input, carried

    def _keep(self, microbatch: int, of_input: Any) -> None:
        if of_input is not None:
            self._boundaries.of_inputs[self._stage, microbatch] = np.array(of_input)
