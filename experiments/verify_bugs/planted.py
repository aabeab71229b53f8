"""Errors of the kinds that public reports of training systems name, to plant into the runtime.

Each replaces a function of the runtime by one that is wrong, while ranks run; what one device
computes was computed before.
"""

# pyright: reportPrivateUsage=false
# An error is planted where it would be made.

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from experiments.verify_bugs.planting import Bug, Plant, RankMemory, around, packed, sharded, unlike
from experiments.verify_bugs.wrong_updates import BUGS_OF_UPDATES
from jaxpipe.comm.collective import async_all_reduce
from jaxpipe.runtime.data import Mixture
from jaxpipe.runtime.data.order.samples import IGNORED
from jaxpipe.runtime.stage import functions, stage
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.runtime.step import batch, interpreter, mailbox
from jaxpipe.runtime.step.gradient_sync import GradientSync
from jaxpipe.runtime.step.interpreter import _Run
from jaxpipe.runtime.step.mailbox import Mailbox
from jaxpipe.runtime.step.stage_run import StageRun
from jaxpipe.runtime.step.step_batch import StepBatch
from jaxpipe.runtime.step.worker import Worker
from jaxpipe.schedule import Bucket

# --- loss and norm -------------------------------------------------------------------------------


def _mean_of_microbatch_means() -> list[Any]:
    memory = RankMemory()

    def backward(right: Callable, run: Any, instruction: Any) -> None:
        spec = run.stages[instruction.stage].calls.spec
        if spec.is_last:
            targets = run.batch.targets(instruction.microbatch)
            memory.of["factor"] = targets.size / max(1, np.count_nonzero(targets != IGNORED))
        right(run, instruction)

    def cotangent(run: StageRun) -> Any:
        unscaled = run.calls.spec.loss_cotangent
        return jnp.asarray(float(unscaled) * memory.of.get("factor", 1.0), unscaled.dtype)

    handlers = dict(interpreter._HANDLERS)
    wrong = partial(backward, _Run.backward)
    for op, handler in handlers.items():
        if handler is _Run.backward:
            handlers[op] = wrong
    return [
        patch.object(interpreter, "_HANDLERS", handlers),
        patch.object(StageRun, "loss_cotangent", property(cotangent)),
    ]


def _replicas_weighted_alike() -> list[Any]:
    def start(right: Callable, sync: Any, instruction: Any, array: Any) -> None:
        plan, rank = sync.plan, sync.reducer._transport.rank
        share = plan.pipeline(rank).num_samples * plan.num_replicas / plan.batch
        right(sync, instruction, array / share)

    return around(GradientSync, "start", start)


def _norm_of_own_stage() -> list[Any]:
    def update(run: Any, instruction: Any) -> None:
        part = run.stages[instruction.stage]
        scale = run._gradient_scale(run.totals)
        part.update(part.square_norm() / (scale or 1.0) ** 2, scale=scale)

    return _handler(_Run.update, update)


def _handler(right: Callable, wrong: Callable) -> list[Any]:
    handlers = {op: wrong if h is right else h for op, h in interpreter._HANDLERS.items()}
    return [patch.object(interpreter, "_HANDLERS", handlers)]


def _norm_of_all_replicas() -> list[Any]:
    def norm(_: Callable, run: Any) -> float:
        return sum(part.square_norm() for part in run.stages.values()) if run.trains else 0.0

    return around(_Run, "_own_square_norm", norm)


def _tied_counted_twice() -> list[Any]:
    def square_norm(_: StageFunctions, buckets: Any) -> Any:
        return jnp.stack([jnp.vdot(v, v) for vectors in buckets.values() for v in vectors]).sum()

    return [patch.object(StageFunctions, "square_norm", square_norm)]


def _masked_targets_counted() -> list[Any]:
    return [patch.object(interpreter, "IGNORED", -1000)]


def _clip_by_square() -> list[Any]:
    return around(
        StageRun,
        "update",
        lambda right, run, norm, scale=None: right(run, norm**2, scale=scale),
    )


def _not_clipped() -> list[Any]:
    return [patch.object(functions, "clip_factor", lambda *_: 1.0)]


# --- all-reduces ---------------------------------------------------------------------------------


def _not_stored(bucket: Bucket) -> Plant:
    def store(right: Callable, run: Any, done: Any, total: Any) -> None:
        if done.bucket is not bucket:
            right(run, done, total)

    return lambda: around(_Run, "_store", store)


def _averaged() -> list[Any]:
    return around(
        _Run,
        "_store",
        lambda right, run, done, total: right(run, done, total / run.interpreter.plan.num_replicas),
    )


def _tied_of_first_stage_alone() -> list[Any]:
    def tied(right: Callable, run: Any) -> Any:
        is_first = any(part.calls.spec.is_first for part in run.stages.values())
        return right(run) if is_first else right(run) * 0

    return around(_Run, "_tied_gradient", tied)


def _changed_sum(change: Callable[[np.ndarray, np.ndarray], None]) -> Plant:
    def reduce(right: Callable, transport: Any, array: Any, *given: Any, **options: Any) -> Any:
        total = np.array(right(transport, array, *given, **options))
        change(total, np.asarray(array))
        return total

    return lambda: around(async_all_reduce, "all_reduce", reduce)


def _last_element_kept(total: np.ndarray, own: np.ndarray) -> None:
    if total.size:
        total[-1] = own[-1]


def _rounded(total: np.ndarray, _: np.ndarray) -> None:
    total[:] = total.astype(np.float32)


def _bucket_reduced_twice(total: np.ndarray, own: np.ndarray) -> None:
    total += own


# --- samples -------------------------------------------------------------------------------------


def _rows(change: Callable[[range, int], range]) -> Plant:
    def rows(right: Callable, job: Any, rank: int) -> range:
        return change(right(job, rank), job.train.batch)

    return lambda: around(batch, "_rows", rows)


def _off_by_one(rows: range, size: int) -> range:
    return range(rows.start + 1, rows.stop + 1) if rows.stop < size else rows


def _first_rows(rows: range, _: int) -> range:
    return range(len(rows))


def _drawn(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    return lambda: around(
        Mixture, "train_samples", lambda right, data, **drawn: right(data, **change(drawn))
    )


def _targets(change: Callable[[np.ndarray], np.ndarray]) -> Plant:
    return lambda: around(StepBatch, "targets", lambda right, *given: change(right(*given)))


def _held_out_of_training() -> list[Any]:
    def samples(_: Callable, data: Mixture, *, index: int, batch: int, rows: Any = None) -> Any:
        return data.train_samples(seed=0, step=index, batch=batch, rows=rows)

    return around(Mixture, "eval_samples", samples)


def _first_held_out_batch_alone() -> list[Any]:
    def sums(right: Callable, rank: Worker, state: Any) -> tuple[float, float]:
        loss, targets = right(rank, state)
        return loss, targets / rank.whole.num_eval_batches

    return around(Worker, "eval_sums", sums)


def _segments_lost() -> list[Any]:
    def sample_parts(right: Callable, run: Any, targets: Any, microbatch: int, spec: Any) -> Any:
        packed = right(run, targets, microbatch, spec)
        return replace(packed, segments=np.zeros_like(packed.segments))

    return around(StepBatch, "with_parts", sample_parts)


def _positions_of_rows() -> list[Any]:
    def positions(segments: Any) -> Any:
        return jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)

    return [patch.object(stage, "segment_positions", positions)]


# --- dropout and recomputation -------------------------------------------------------------------


def _dropout_alike_in_replicas() -> list[Any]:
    return around(
        batch, "_step_batch", lambda right, *given: replace(right(*given), first_microbatch=0)
    )


def _position(change: Callable[[np.ndarray], np.ndarray]) -> Plant:
    def forward(right: Callable, run: Any, number: int, x: Any, y: Any, position: Any) -> Any:
        return right(run, number, x, y, change(position))

    return lambda: around(StageRun, "forward", forward)


def _recomputed_with_other_dropout() -> list[Any]:
    def rematerialise(block: Callable, _: Any, *, scanned: bool) -> Callable:  # noqa: ARG001
        @jax.custom_vjp
        def layer(params: Any, x: Any, key: Any) -> Any:
            return block(params, x, key)

        def backward(given: Any, of_output: Any) -> Any:
            params, x, key = given
            other = jax.random.fold_in(key, 1)
            return (*jax.vjp(lambda p, x: block(p, x, other), params, x)[1](of_output), None)

        layer.defvjp(lambda *given: (block(*given), given), backward)
        return layer

    return [patch.object(stage, "rematerialise", rematerialise)]


# --- messages and microbatches -------------------------------------------------------------------


def _stale_activation() -> list[Any]:
    memory = RankMemory()

    def forward(right: Callable, run: Any, number: int, x: Any, y: Any, position: Any) -> Any:
        stale = x if run.calls.spec.is_first or run.gradients is None else memory.of.get("x", x)
        memory.of["x"] = x
        return right(run, number, stale, y, position)

    return around(StageRun, "forward", forward)


def _swapped_messages() -> list[Any]:
    def send(box: Any, instruction: Any) -> None:
        message = mailbox._message(instruction)
        source, to, microbatch = message
        array = box._arrays.pop(message)
        if box._transport.rank == 0 and microbatch < 2:
            message = (source, to, 1 - microbatch)
        sending = box._transport.send(array, to=box._rank_of(to), tag=box._tag(message))
        box._sendings.append((instruction, array.nbytes, box._recorder.now(), sending))

    return [patch.object(Mailbox, "send", send)]


def _residuals_swapped() -> list[Any]:
    def backward(right: Callable, run: StageRun, microbatch: int, of_output: Any) -> Any:
        others = [number for number in run.residuals if number != microbatch]
        if others:
            mine, other = run.residuals[microbatch], run.residuals[others[0]]
            run.residuals[microbatch], run.residuals[others[0]] = other, mine
        return right(run, microbatch, of_output)

    return around(StageRun, "backward", backward)


def _gradient_dropped_between_stages() -> list[Any]:
    def backward(right: Callable, run: StageRun, microbatch: int, of_output: Any) -> Any:
        of_input = right(run, microbatch, of_output)
        return of_input if of_input is None or microbatch else of_input * 0

    return around(StageRun, "backward", backward)


def _microbatch_left_out() -> list[Any]:
    def backward(right: Callable, run: StageRun, microbatch: int, of_output: Any) -> Any:
        before = jax.tree.map(jnp.copy, run.gradients)
        of_input = right(run, microbatch, of_output)
        if microbatch == 0:
            run.gradients = before
        return of_input

    return around(StageRun, "backward", backward)


def _weight_half_left_out() -> list[Any]:
    def backward(right: Callable, run: StageRun, microbatch: int) -> None:
        before = jax.tree.map(jnp.copy, run.gradients)  # it donates those that it adds to
        right(run, microbatch)
        if microbatch == 0:
            run.gradients = before

    return around(StageRun, "backward_weight", backward)


def _gradients_not_reset() -> list[Any]:
    memory = RankMemory()

    def pack(right: Callable, run: StageRun) -> Any:
        if not run.buckets:
            right(run)
            key = run.calls.spec.is_first, run.calls.spec.is_last
            more = memory.of.get(key)
            memory.of[key] = run.buckets
            if more is not None:
                run.buckets = jax.tree.map(jnp.add, run.buckets, more)
        return run.buckets

    return around(StageRun, "pack", pack)


BUGS: tuple[Bug, ...] = (
    unlike("mean of the means of microbatches", _mean_of_microbatch_means),
    unlike("replicas of unequal shares weighted alike", _replicas_weighted_alike),
    unlike("norm of a stage's own gradients", _norm_of_own_stage),
    unlike("norm counted in every replica", _norm_of_all_replicas),
    unlike("tied embedding counted twice in the norm", _tied_counted_twice, "square_norm"),
    unlike("masked targets count", _masked_targets_counted),
    unlike("clipped by the square of the norm", _clip_by_square),
    unlike("not clipped", _not_clipped, "update"),
    unlike("stages not reduced over replicas", _not_stored(Bucket.STAGE)),
    unlike("copies of the tied embedding not summed", _not_stored(Bucket.TIED)),
    unlike("tied gradient of the first stage alone", _tied_of_first_stage_alone),
    unlike("averaged over replicas instead of summed", _averaged),
    unlike("own part added twice in an all-reduce", _changed_sum(_bucket_reduced_twice)),
    unlike("share shifted by one sample", _rows(_off_by_one)),
    unlike("all replicas read the same samples", _rows(_first_rows)),
    unlike("same samples in every step", _drawn(lambda drawn: {**drawn, "step": 0})),
    unlike("samples in the order of another seed", _drawn(lambda d: {**d, "seed": 99})),
    unlike("targets shifted by one token", _targets(lambda t: np.roll(t, 1, axis=-1))),
    unlike("mask of the targets lost", _targets(lambda t: np.where(t == IGNORED, 0, t))),
    unlike("held-out loss of training samples", _held_out_of_training),
    unlike("held-out loss over the targets of one batch", _first_held_out_batch_alone),
    unlike("replicas drop the same units", _dropout_alike_in_replicas),
    unlike("same dropout in every step", _position(lambda p: p * np.array([0, 1], p.dtype))),
    unlike("same dropout in every microbatch", _position(lambda p: p * np.array([1, 0], p.dtype))),
    unlike("recomputed with other dropout", _recomputed_with_other_dropout, "forward", "backward"),
    unlike("activation of the microbatch before", _stale_activation),
    unlike("messages of two microbatches swapped", _swapped_messages),
    unlike("residuals of another microbatch", _residuals_swapped),
    unlike("gradient lost between stages", _gradient_dropped_between_stages),
    unlike("microbatch left out of the gradient", _microbatch_left_out),
    unlike("gradients of the step before not cleared", _gradients_not_reset),
    sharded("last element of an all-reduce not summed", _changed_sum(_last_element_kept)),
    sharded("summed in 32 bits", _changed_sum(_rounded)),
    sharded("weight half of a microbatch left out", _weight_half_left_out),
    packed("documents see each other", _segments_lost),
    packed("positions counted from the row", _positions_of_rows, "forward", "backward", "evaluate"),
    *BUGS_OF_UPDATES,
)
