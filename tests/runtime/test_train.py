"""A run of training: it learns, it can be resumed, and what it leaves can be read."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpipe.config import config_from, job_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from jaxpipe.runtime.stage.compile import compile_stage
from jaxpipe.trace import Lane, read_chrome, summarise
from tests.runtime.training import run_tree, small_tree

pytestmark = pytest.mark.slow

ROUNDING = 1e-5
COMPILED = (
    *("init", "cast", "cast_layer", "zeros", "forward", "backward", "evaluate"),
    *("pack", "square_norm", "update", "_rate"),
)


def job_from_tree(tree: dict[str, Any]) -> Job:
    config = config_from(tree)
    return job_from(config, plan_from(config))


def losses(metrics: list[StepMetrics]) -> list[float]:
    return [m.loss for m in metrics]


def test_a_jax_that_nothing_was_tested_with_is_warned_of_once(
    tmp_path: Path,
    dataset: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(jax, "__version__", "0.13.0")
    assert len(run_tree(small_tree(tmp_path, dataset, train={"steps": 1}))) == 1
    assert caplog.messages == [
        "jaxpipe is tested with jax 0.10.2 to 0.12, and this is jax 0.13.0: if anything fails, "
        "install one of those versions"
    ]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """Return the folder of a run of four steps, with checkpoints after two and four."""
    folder = tmp_path_factory.mktemp("runs") / "reference"
    run_tree(small_tree(folder, dataset, run={"pictures": True}))
    return folder


def interrupted(reference: Path, folder: Path) -> Path:
    """Return a copy of the reference run as it was after two steps."""
    shutil.copytree(reference, folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    return folder


def metrics_of(folder: Path) -> list[StepMetrics]:
    return read_metrics(folder / "metrics.jsonl")


def test_the_loss_falls(tmp_path: Path, dataset: Path):
    metrics = run_tree(small_tree(tmp_path, dataset, train={"steps": 30, "eval_every": 10}))
    assert losses(metrics)[0] == pytest.approx(np.log(256), abs=0.2)
    assert losses(metrics)[-1] < 3.5
    assert [m.step for m in metrics if m.eval_loss is not None] == [1, 10, 20, 30]
    assert metrics[-1].eval_loss == pytest.approx(metrics[-1].loss, abs=0.5)


def test_a_run_without_held_out_data_measures_none(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a few words to train on")
    prepare(Source(path=tmp_path / "a.txt"), tmp_path / "d", eval_fraction=0.0)
    metrics = run_tree(small_tree(tmp_path / "run", tmp_path / "d", train={"eval_every": 0}))
    assert len(metrics) == 4
    assert all(m.eval_loss is None for m in metrics)


def test_the_default_batches_of_a_held_out_loss_are_those_that_are_there(
    tmp_path: Path, dataset: Path
):
    job = job_from_tree(small_tree(tmp_path, dataset, train={"eval_batches": None}))
    assert job.num_eval_batches == 4
    (tmp_path / "a.txt").write_text("words " * 600)  # of which 360 tokens are held out
    prepare(Source(path=tmp_path / "a.txt"), tmp_path / "d")
    job = job_from_tree(small_tree(tmp_path, tmp_path / "d", train={"eval_batches": None}))
    assert job.num_eval_batches == 2


def test_a_resumed_run_repeats_the_losses_bit_by_bit(
    reference: Path, tmp_path: Path, dataset: Path
):
    folder = interrupted(reference, tmp_path / "run")
    resumed = run_tree(small_tree(folder, dataset), resume=True)
    expected = metrics_of(reference)
    assert [m.step for m in resumed] == [1, 2, 3, 4]
    assert losses(resumed) == losses(expected)
    assert [m.grad_norm for m in resumed] == [m.grad_norm for m in expected]
    assert resumed[-1].eval_loss == expected[-1].eval_loss


@pytest.mark.parametrize(
    ("sections", "samples"),
    [
        ({"train": {"batch": 4}}, 2 * 8 + 2 * 4),
        ({"run": {"seed": 2}, "plan": {"stages": 1, "replicas": 1}}, 2 * 8),
    ],
    ids=["another batch continues", "another order begins"],
)
def test_the_samples_of_a_resumed_run_are_counted(
    reference: Path,
    tmp_path: Path,
    dataset: Path,
    sections: dict[str, dict[str, Any]],
    samples: int,
):
    folder = interrupted(reference, tmp_path / "run")
    tree = small_tree(folder, dataset)
    run_tree({name: {**tree[name], **sections.get(name, {})} for name in tree}, resume=True)
    assert open_checkpoint(latest(folder)).metadata["samples"] == samples


@pytest.mark.parametrize(
    "plan",
    [
        {"stages": 1, "replicas": 2, "schedule": "zb-h1"},
        {"stages": 2, "replicas": 1, "schedule": "zb-h2"},
        {"stages": 2, "replicas": 4},
        {"stages": 2, "replicas": 2, "schedule": "interleaved-1f1b", "chunks": 2},
        {"cuts": ((1, 1), (2,)), "shares": (5, 3)},
    ],
)
def test_a_run_resumes_with_other_stages_and_replicas(
    reference: Path, tmp_path: Path, dataset: Path, plan: dict[str, Any]
):
    folder = interrupted(reference, tmp_path / "run")
    resumed = run_tree(small_tree(folder, dataset, plan=plan), resume=True)
    assert losses(resumed) == pytest.approx(losses(metrics_of(reference)), rel=ROUNDING)


def test_a_run_of_unlike_replicas_resumes_with_equal_ones(
    reference: Path, tmp_path: Path, dataset: Path
):
    plan = {"cuts": ((2,), (1, 1)), "shares": (2, 6)}
    unlike = run_tree(small_tree(tmp_path / "unlike", dataset, plan=plan))
    assert losses(unlike) == pytest.approx(losses(metrics_of(reference)), rel=ROUNDING)
    norms = [each.grad_norm for each in unlike]
    assert norms == pytest.approx([m.grad_norm for m in metrics_of(reference)], rel=ROUNDING)
    folder = interrupted(tmp_path / "unlike", tmp_path / "run")
    resumed = run_tree(small_tree(folder, dataset), resume=True)
    assert losses(resumed) == pytest.approx(losses(metrics_of(reference)), rel=ROUNDING)


def test_dropout_does_not_depend_on_the_placement(tmp_path: Path, dataset: Path):
    model = {"dropout": 0.3}
    plans = (
        {"stages": 1, "replicas": 1},
        {"stages": 2, "replicas": 2},
        {"cuts": ((1, 1), (2,)), "shares": (5, 3)},
    )
    runs = [
        losses(run_tree(small_tree(tmp_path / str(n), dataset, model=model, plan=plan)))
        for n, plan in enumerate(plans)
    ]
    without = losses(run_tree(small_tree(tmp_path / "without", dataset, plan=plans[0])))
    assert runs[0] == pytest.approx(runs[1], rel=ROUNDING)
    assert runs[0] == pytest.approx(runs[2], rel=ROUNDING)
    assert runs[0] != pytest.approx(without, rel=1e-3)


def test_bfloat16_keeps_float32_master_weights(reference: Path, tmp_path: Path, dataset: Path):
    model = {"compute_dtype": "bfloat16"}
    plan = {"stages": 1, "replicas": 1}
    metrics = run_tree(small_tree(tmp_path, dataset, model=model, plan=plan))
    assert losses(metrics) == pytest.approx(losses(metrics_of(reference)), rel=2e-2)
    assert losses(metrics) != losses(metrics_of(reference))
    tensors = open_checkpoint(latest(tmp_path)).tensors.values()
    assert {tensor.dtype for tensor in tensors} == {"float32"}


def test_the_trace_holds_the_last_steps_of_all_ranks(reference: Path):
    trace = read_chrome(reference / "trace.json")
    assert {span.step for span in trace.spans} == {2, 3, 4}
    assert {span.rank for span in trace.spans} == {0, 1, 2, 3}
    assert {span.lane for span in trace.spans} == set(Lane)
    steps = summarise(trace)
    # One bubble, equal to the last digit wherever it is said, and equal to that of the spans.
    logged = {each.step: each.bubble for each in metrics_of(reference)}
    assert {each.step: each.bubble for each in steps} == {n: logged[n] for n in (2, 3, 4)}
    for ours, of_spans in zip(steps, summarise(replace(trace, bubbles=())), strict=True):
        assert of_spans.bubble == pytest.approx(ours.bubble, rel=1e-6)
        assert ours.bubble is not None
        assert 0 < ours.bubble < 1
    assert (reference / "timeline.png").stat().st_size > 0


def test_a_trace_of_more_steps_than_there_are_holds_no_evaluation(tmp_path: Path, dataset: Path):
    plan = {"stages": 1, "replicas": 1}
    run_tree(small_tree(tmp_path, dataset, plan=plan, train={"steps": 1}, trace={"steps": 9}))
    assert {span.step for span in read_chrome(tmp_path / "trace.json").spans} == {1}
    assert not (tmp_path / "timeline.png").exists()  # `run.pictures` is false


def test_metrics_measure_what_they_say(reference: Path):
    for metrics in metrics_of(reference):
        assert metrics.tokens_per_s == pytest.approx(8 * 16 / metrics.step_s)
        assert 0 <= metrics.bubble < 1
        # 2 replicas x 4 microbatches, both ways, of 16 tokens x 16 dims x 4 bytes; and gradients
        assert metrics.sent_bytes > 2 * 2 * 4 * 16 * 16 * 4


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect the names of what XLA compiles."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(str(kwargs["fun_name"]))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.clear_event_listeners()


def test_nothing_compiles_twice(tmp_path: Path, dataset: Path):
    def run(name: str, *, steps: int) -> None:
        plan = {"stages": 1, "replicas": 1}
        tree = small_tree(
            tmp_path / name, dataset, plan=plan, train={"steps": steps, "loop": "unrolled"}
        )
        run_tree(tree, compile_stage=compile_stage)

    with compilations() as short:
        run("short", steps=2)
    with compilations() as long:
        run("long", steps=6)
    assert sorted(short) == sorted(f"jit({name})" for name in COMPILED)
    assert sorted(long) == sorted(short)
