"""The verdict before a run is that of its ranks, for settings in random combinations.

`JAXPIPE_EXAMPLES=10 pytest tests/run/test_verdict.py` tries ten times as many.
"""

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.config import Config, check_here, config_from, job_from
from jaxpipe.errors import UserError
from jaxpipe.plan import Plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.verdict import check_can_run
from jaxpipe.runtime.stage.compile import compile_stage
from jaxpipe.runtime.stage.optimizer_config import OptimizerName
from jaxpipe.runtime.step.batch import eval_step_batch, train_step_batch
from jaxpipe.runtime.step.worker import boundary_codecs, gradient_wire
from jaxpipe.schedule import ScheduleKind
from tests.runtime.training import Tree, tiny_tree

TIMES = int(os.environ.get("JAXPIPE_EXAMPLES", "1"))
CLUSTER = topo.load("laptop")
ONE_DEVICE = {"JAX_PLATFORMS": "cpu"}
SWITCH = [False, True]
VALUES: dict[str, list[Any]] = {
    "model.num_layers": [1, 2, 3, 4, 6],
    "model.dim": [16, 24, 18],
    "model.num_heads": [1, 2, 3, 4],
    "model.sequence": [8, 16],
    "model.vocabulary": [255, 256, 300],
    "model.tied": SWITCH,
    "model.dropout": [0.0, 0.1],
    "model.param_dtype": ["float32", "bfloat16"],
    "model.compute_dtype": ["float32", "bfloat16", "float16"],
    "model.attention": ["auto", "product", "flash"],
    "model.experts": [0, 2, 3],
    "model.experts_per_token": [1, 2, 5],
    "model.routing_groups": [0, 1, 2, 3],
    "model.dispatch": ["einsum", "ragged"],
    "model.balance_loss": [0.0, 0.01],
    "model.classes": [0, 2],
    "model.causal": SWITCH,
    "model.logits_bytes": [1, 4096],
    "plan.stages": [1, 2, 3, 4],
    "plan.replicas": [1, 2, 3],
    "plan.microbatch": [1, 2, 3, 4],
    "plan.schedule": list(ScheduleKind),
    "plan.chunks": [1, 2],
    "plan.cut": [[1, 2], [3], [], [2, 2], [3, 0]],
    "plan.cuts": [[[1, 2], [3]], [[1, 2], [2, 1]], [[]]],
    "plan.shares": [[4, 4], [8, 0], [6, 2], [5, 3]],
    "plan.warmup": [[2, 1], [1, 2], [9, 1]],
    "plan.all_reduce": list(AllReduceKind),
    "train.batch": [3, 4, 6, 8, 12],
    "train.sequence": [8, 16, 32],
    "train.remat": ["none", "dots", "full"],
    "train.loop": ["scan", "unrolled"],
    "train.eval_batches": [1, 2, 10**6],
    "train.frozen": [["embed.*"], ["blocks.[0-0].*"], ["nothing.*"]],
    "comm.boundary": list(CodecKind),
    "comm.gradients": list(CodecKind),
    "mesh.data": [1, 2],
    "mesh.tensor": [1, 2],
    "mesh.context": [1, 2],
    "outer.islands": [1, 2, 3],
    "outer.every": [1, 2, 3],
    "outer.fragments": [1, 2],
    "outer.codec": list(CodecKind),
    "lora.rank": [0, 2],
    "optimizer.name": list(OptimizerName),
    "optimizer.sharded": SWITCH,
    "optimizer.warmup_steps": [0, 1, 10**6],
    "data.pack": SWITCH,
    "run.transport": ["mpi", "nccl", "shaped"],
    "run.survive": ["restart", "shrink"],
    "run.seed": [0, 2**32 - 1, 2**32],
}


@st.composite
def sections(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Return some fields, each with a value that is right in some company at least."""
    fields = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5, unique=True))
    changes: dict[str, dict[str, Any]] = {}
    for path in fields:
        section, field = path.split(".")
        changes.setdefault(section, {})[field] = draw(st.sampled_from(VALUES[path]))
    return changes


def tree_of(dataset: Path, changes: dict[str, dict[str, Any]]) -> Tree:
    tree = tiny_tree(Path("run"), dataset, **changes)
    if "cuts" in tree["plan"]:
        tree["plan"] = {k: v for k, v in tree["plan"].items() if k not in ("stages", "replicas")}
    return tree


def checked(tree: Tree) -> tuple[Config, Plan]:
    """Return what has passed all checks that come before any process starts."""
    config = config_from(tree)
    plan = plan_from(config, CLUSTER)
    check_can_run(config, plan, CLUSTER, environment=ONE_DEVICE)
    check_here(config, plan, ONE_DEVICE)
    return config, plan


def shapes_alone(compiler: Any, name: str, function: Any, *arguments: Any, **_: Any) -> Any:
    """Return the shapes of the results of a function, without compiling it."""
    compiler.executables[name] = None
    return jax.eval_shape(function, *arguments)


def be_each_rank(config: Config, plan: Plan) -> None:
    """Do all that ranks do before their first step: samples, codecs, programs, traced stages."""
    job = job_from(config, plan, devices=[CLUSTER.devices[n].name for (n,) in plan.groups])
    gradient_wire(job.comm)
    stages = set()
    for rank in range(plan.num_ranks):
        train_step_batch(job, rank=rank, step=0)
        eval_step_batch(job, rank=rank, index=0)
        boundary_codecs(job.comm, plan, rank=rank)
        replica, number = plan.replica(rank), plan.number(rank)
        schedule = plan.train_schedule(replica=replica, sharded=job.optimizer.sharded)
        for stage in plan.stages(rank):
            functions = job.functions(stage=stage, rank=rank)
            ops = frozenset(i.op for i in schedule[number] if i.stage == stage)
            shape = (stage, plan.pipeline(rank).cut, functions.work, ops)
            if shape not in stages:
                stages.add(shape)
                with patch("jaxpipe.runtime.stage.compile._Compiler.add", shapes_alone):
                    compile_stage(functions, ops=ops)


@settings(max_examples=200 * TIMES)
@given(changes=sections())
def test_a_verdict_is_a_refusal_of_the_user_or_none(
    dataset: Path, changes: dict[str, dict[str, Any]]
) -> None:
    try:
        checked(tree_of(dataset, changes))
    except UserError as error:
        words = str(error)
        assert words.startswith(("`", "[", "no "))
        assert "num_microbatches" not in words
        assert "num_chunks" not in words


@pytest.mark.slow
@settings(max_examples=10 * TIMES)
@given(changes=sections())
def test_what_passes_the_check_is_not_refused_by_ranks(
    dataset: Path, changes: dict[str, dict[str, Any]]
) -> None:
    try:
        config, plan = checked(tree_of(dataset, changes))
    except UserError:
        return
    be_each_rank(config, plan)
