"""Runs one training step of a small model through a pipeline, and collects its gradients."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.comm import (
    AsyncAllReduce,
    CompressedTransport,
    CountingTransport,
    Transport,
    WireFormat,
)
from jaxpipe.plan import Plan, default_plan
from jaxpipe.runtime.checkpoint import flatten
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.runtime.stage.compile import CompiledStage
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.gradient_buckets import unpack
from jaxpipe.runtime.stage.mesh import layout_over
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.stage.train_state import StageState, TrainState
from jaxpipe.runtime.step.interpreter import Interpreter
from jaxpipe.runtime.step.mailbox import Timeouts
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.runtime.step.step_batch import StepBatch
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.runtime.watchdog.of_job import no_watchdog
from jaxpipe.schedule import Op, ScheduleKind
from jaxpipe.topo import load
from tests.oracles.one_device import MICROBATCH, NUM_LAYERS, SEED, SEQUENCE, tiny_gpt
from tests.plan_section import decided
from tests.runtime.compiled_once import compile_stage_once

NO_MESH = MeshConfig()


def make_plan(
    *,
    schedule: ScheduleKind,
    cut: tuple[int, ...],
    num_replicas: int,
    num_microbatches: int,
    tied: bool,
    num_chunks: int = 1,
) -> Plan:
    """Return a plan for the small model on one host."""
    config = decided(
        cluster="laptop",
        stages=len(cut),
        replicas=num_replicas,
        microbatch=MICROBATCH,
        schedule=schedule,
        cut=cut,
        chunks=num_chunks,
    )
    batch = num_replicas * num_microbatches * MICROBATCH
    return default_plan(config, load("laptop"), num_layers=NUM_LAYERS, batch=batch, tied=tied)


def make_uneven_plan(
    *,
    schedule: ScheduleKind,
    cuts: tuple[tuple[int, ...], ...],
    num_microbatches: tuple[int, ...],
    tied: bool,
    num_chunks: int = 1,
) -> Plan:
    """Return a plan whose replicas have their own partitions and numbers of microbatches."""
    config = decided(
        cluster="laptop",
        cuts=cuts,
        shares=tuple(MICROBATCH * number for number in num_microbatches),
        microbatch=MICROBATCH,
        schedule=schedule,
        chunks=num_chunks,
    )
    batch = sum(num_microbatches) * MICROBATCH
    return default_plan(config, load("laptop"), num_layers=NUM_LAYERS, batch=batch, tied=tied)


def ops_of(plan: Plan) -> frozenset[Op]:
    """Return the operations that the schedules of a plan have."""
    return frozenset(
        each.op
        for replica in range(plan.num_replicas)
        for program in plan.train_schedule(replica=replica)
        for each in program
    )


def compiled_stage(
    *,
    cut: tuple[int, ...],
    stage: int,
    tied: bool,
    segments: tuple[int, ...] = (),
    shares_embedding: bool = False,
    mesh: MeshConfig = NO_MESH,
    loop: Loop = Loop.UNROLLED,
    ops: Collection[Op] = Op,
    experts: int = 0,
) -> CompiledStage:
    """Return the compiled stage, for any schedule; only `loss_cotangent` depends on the batch."""
    start = sum(cut[:stage])
    model = tiny_gpt(tied=tied, experts=experts)
    functions = StageFunctions(
        stage=Stage(
            model=model,
            index=stage,
            num_stages=len(cut),
            layers=range(start, start + cut[stage]),
            loop=loop,
            segments=segments,
            shares_embedding=shares_embedding,
            layout=layout_over(jax.local_devices(), mesh, split=model.split),
        ),
        work=Work(microbatch=MICROBATCH, sequence=SEQUENCE, batch=1, num_steps=1, seed=SEED),
        optimizer=OptimizerConfig(),
    )
    return compile_stage_once(functions, ops=ops)


def compile_all(
    plan: Plan,
    *,
    ranks: Iterable[int] | None = None,
    loop: Loop = Loop.UNROLLED,
    ops: Collection[Op] = Op,
    experts: int = 0,
) -> None:
    """Compile the stages of ranks, by default of all, which takes longer than a message may."""
    for rank in range(plan.num_ranks) if ranks is None else ranks:
        _compiled_stages(plan, rank=rank, loop=loop, ops=ops, experts=experts)


def _compiled_stages(
    plan: Plan,
    *,
    rank: int,
    mesh: MeshConfig = NO_MESH,
    loop: Loop,
    ops: Collection[Op],
    experts: int,
) -> dict[int, CompiledStage]:
    replica = plan.replica(rank)
    return {
        stage: compiled_stage(
            cut=plan.pipelines[replica].cut,
            stage=stage,
            tied=plan.tied,
            segments=plan.segment_layers(replica=replica, stage=stage),
            shares_embedding=plan.shares_embedding,
            mesh=mesh,
            loop=loop,
            ops=ops,
            experts=experts,
        )
        for stage in plan.stages(rank)
    }


def gradients_of_rank(
    transport: Transport,
    plan: Plan,
    tokens: np.ndarray,
    *,
    mesh: MeshConfig = NO_MESH,
    loop: Loop = Loop.UNROLLED,
    ops: Collection[Op] = Op,
    experts: int = 0,
    in_flight: int = 1,
    clip_norm: float = 0.0,
    before_close: Callable[[], None] = lambda: None,
) -> tuple[dict[str, np.ndarray], StepTotals]:
    """Return this rank's reduced gradients by name, and the totals of the step.

    What is compiled for all of `ops` serves every schedule; each takes time to compile.
    `before_close` is called at the end of the step, before its threads end.
    """
    replica = plan.replica(transport.rank)
    pipeline = plan.pipelines[replica]
    cotangent = jnp.float32(1 / (len(tokens) * SEQUENCE))
    stages_of_rank = _compiled_stages(
        plan, rank=transport.rank, mesh=mesh, loop=loop, ops=ops, experts=experts
    )
    compiled = {stage: _with_cotangent(each, cotangent) for stage, each in stages_of_rank.items()}
    counted = CountingTransport(transport)
    interpreter = Interpreter(
        plan=plan,
        calls=compiled,
        transport=counted,
        messages=CompressedTransport(counted, {}),
        reducer=AsyncAllReduce(counted),
        wire=WireFormat(),
        recorder=SpanRecorder(rank=transport.rank, clock=time.perf_counter, keep=lambda _: False),
        timeouts=Timeouts(timeout_s=60.0, receive_ahead=2),
        watch=no_watchdog(transport.rank),
        in_flight=in_flight,
        clip_norm=clip_norm,
    )
    stages = {}
    for stage, each in compiled.items():
        params, moments = each.init()
        stages[stage] = StageState(params=params, moments=moments)
    rows = plan.rows(replica)
    mine = tokens[rows.start : rows.stop]
    feed = StepBatch(
        step=0,
        first_microbatch=plan.first_microbatch(replica),
        samples=mine.reshape(pipeline.num_microbatches, MICROBATCH, SEQUENCE + 1),
    )
    program = plan.train_schedule(replica=replica)[plan.number(transport.rank)]
    buckets, totals = interpreter.gradients(program, TrainState(stages=stages), feed)
    before_close()
    interpreter.reducer.close(timeout_s=60.0)
    interpreter.messages.stop(timeout_s=60.0)
    gradients: dict[str, np.ndarray] = {}
    for stage, each in compiled.items():
        is_end = each.spec.is_first or each.spec.is_last
        tree = unpack(
            jax.tree.map(np.asarray, buckets[stage]),
            stages[stage].params,
            tied=plan.shares_embedding and is_end,
            segments=plan.segment_layers(replica=replica, stage=stage),
        )
        gradients |= flatten(tree, first_layer=pipeline.layers(stage).start)
    return gradients, totals


def _with_cotangent(stage: CompiledStage, cotangent: jax.Array) -> CompiledStage:
    return replace(stage, spec=replace(stage.spec, loss_cotangent=cotangent))
