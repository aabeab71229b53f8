"""A rank calls hooks at every point of its work, and computes the same with them as without."""

from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.config import config_from, job_from
from jaxpipe.plan import Plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.hooks import Hooks, SavePhase
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from jaxpipe.runtime.step import worker
from jaxpipe.runtime.train import train
from jaxpipe.schedule import Instruction, Op
from tests.runtime.compiled_once import compile_stage_once
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.slow

STEPS = 3


class Recorder(Hooks):
    """Keeps what one rank calls."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self.compiled: list[tuple[int, int]] = []
        self.phases: list[SavePhase] = []
        self.instructions: Counter[Op] = Counter()
        self.shapes: list[tuple[int, ...] | None] = []

    def before_compile(self, *, done: int, total: int) -> None:
        self.compiled.append((done, total))

    def after_compile(self) -> None:
        self.points.append("compiled")

    def after_read(self, plan: Plan, tokens: np.ndarray | None, *, rank: int, step: int) -> None:
        assert rank < plan.num_ranks
        self.points.append(f"step {step}")
        self.shapes.append(None if tokens is None else tokens.shape)

    def before_instruction(self, instruction: Instruction) -> None:
        self.instructions[instruction.op] += 1

    def before_evaluation(self) -> None:
        self.points.append("evaluation")

    def before_last_save(self) -> None:
        self.points.append("last save")

    def before_save_phase(self, phase: SavePhase) -> None:
        self.phases.append(phase)


def ignore(_: StepMetrics) -> None:
    pass


def test_hooks_are_called_at_their_points(tmp_path: Path, dataset: Path) -> None:
    sections = {
        "plan": {"stages": 3, "replicas": 1},
        "train": {"steps": STEPS, "eval_every": STEPS},
        "checkpoint": {"every": 1, "keep": 2},
    }
    config = config_from(tiny_tree(tmp_path / "run", dataset, **sections))
    plan = plan_from(config)
    job = job_from(config, plan)

    def work(transport: Transport) -> Recorder:
        recorder = Recorder()
        train(job, transport, checkpoint=None, observe=ignore, hooks=recorder)
        return recorder

    with patch.object(worker, "compile_stage", compile_stage_once):  # the run below has the same
        first, middle, last = run_ranks(plan.num_ranks, work)
    for recorder in (first, middle, last):
        total = recorder.compiled[0][1]
        assert recorder.compiled == [(done, total) for done in range(total)]
    steps = ["compiled", "step 0", "evaluation", "step 1", "step 2", "evaluation", "last save"]
    assert first.points == middle.points == last.points == steps
    assert middle.shapes == [None] * STEPS
    tokens = (plan.num_microbatches, plan.microbatch, job.sequence + 1)
    assert first.shapes == last.shapes == [tokens] * STEPS
    assert first.instructions[Op.UPDATE] == STEPS
    commit = [SavePhase.SHARDS, SavePhase.MANIFEST, SavePhase.RENAME, SavePhase.PRUNE]
    assert first.phases == [*commit, *commit, *commit, SavePhase.REMOVE]
    assert middle.phases == last.phases == [SavePhase.SHARDS] * STEPS
    without = run_tree(tiny_tree(tmp_path / "without", dataset, **sections))
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [m.loss for m in metrics] == [m.loss for m in without]
