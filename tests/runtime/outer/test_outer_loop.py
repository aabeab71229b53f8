"""Runs with an outer loop: against islands in one process, in bytes, and resumed bit for bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.config import config_from, restored_model
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import island_of
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint import flatten, latest, open_checkpoint
from jaxpipe.runtime.metrics.records import TRACE_FILE, StepMetrics
from jaxpipe.trace import messages, read_chrome
from tests.oracles.outer_loop import Setting, diloco, eager
from tests.oracles.outer_training import InnerTraining, flat_step, packed, unpacked
from tests.outer.replay import replay
from tests.runtime.training import Tree, run_tree, small_tree, tiny_tree

pytestmark = pytest.mark.slow

ROUNDING = 2e-5
TWO = {"islands": 2, "every": 2}
ONE_RANK_EACH = {"stages": 1, "replicas": 2}


def inner_training(tree: Tree) -> InnerTraining:
    """Return the islands of a configuration, each on one device."""
    config = config_from(tree)
    plan = plan_from(config)
    islands = {
        each.number: each
        for rank in range(plan.num_ranks)
        for each in [island_of(plan, rank=rank, num_islands=config.outer.islands)]
    }
    rows = [
        range(plan.rows(each.replicas.start).start, plan.rows(each.replicas.stop - 1).stop)
        for _, each in sorted(islands.items())
    ]
    return InnerTraining(config=config, rows=rows)


def anchor_of(folder: Path) -> dict[str, np.ndarray]:
    return tensors_of(folder, without=("mu.", "nu.", "momentum.", "pending.", "island."))


def tensors_of(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(latest(folder))
    return checkpoint.read(name for name in checkpoint.tensors if not name.startswith(without))


def assert_trained_as(
    folder: Path, metrics: list[StepMetrics], inner: InnerTraining, anchor: dict[str, np.ndarray]
) -> None:
    assert [m.loss for m in metrics] == pytest.approx(inner.losses[0], rel=ROUNDING)
    found = anchor_of(folder)
    assert set(found) == set(anchor)
    for name, values in anchor.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-3, atol=2e-5, err_msg=name)
    assert metrics[-1].eval_loss == pytest.approx(inner.eval_loss(anchor), rel=ROUNDING)


@pytest.mark.parametrize(
    "sections",
    [
        {"plan": {"stages": 1, "replicas": 2, "shares": (5, 3)}},
        {"plan": {"stages": 2, "replicas": 4}, "optimizer": {"sharded": True}},
        {
            "plan": {"stages": 2, "replicas": 2, "schedule": "interleaved-1f1b", "chunks": 2},
            "model": {"tied": False},
        },
        {"plan": {"stages": 1, "replicas": 4}, "outer": {"islands": 4}},
        {"plan": {"stages": 1, "replicas": 2}, "outer": {"islands": 1}},
        {
            "plan": {"stages": 2, "replicas": 2},
            "outer": {"every": 1, "momentum": 0.5, "learning_rate": 0.9},
        },
    ],
)
def test_a_run_is_that_of_islands_in_one_process(
    tmp_path: Path, dataset: Path, sections: dict[str, dict[str, Any]]
):
    sections = {**sections, "outer": {**TWO, **sections.get("outer", {})}}
    tree = small_tree(tmp_path, dataset, **sections)
    metrics = run_tree(tree)
    inner, outer = inner_training(tree), OuterConfig(**tree["outer"])
    setting = Setting(
        weights=[len(rows) / 8 for rows in inner.rows],
        every=outer.every,
        eta=outer.learning_rate,
        mu=outer.momentum,
    )
    first = inner.start
    anchor, momentum, _ = diloco(packed(first), flat_step(inner), setting, num_steps=4)
    shapes = {name: each.shape for name, each in first.items()}
    assert_trained_as(tmp_path, metrics, inner, unpacked(anchor, shapes))
    found = tensors_of(tmp_path)
    for name, values in unpacked(momentum, shapes).items():
        np.testing.assert_allclose(found[f"momentum.{name}"], values, rtol=2e-2, atol=2e-5)


def test_a_trace_has_the_messages_of_all_islands(tmp_path: Path, dataset: Path):
    """Stages name their peers by their number inside an island, a trace by that in the run."""
    run_tree(small_tree(tmp_path, dataset, plan={"stages": 2, "replicas": 2}, outer=TWO))
    found = {
        (sent.rank, received.rank)
        for sent, received in messages(read_chrome(tmp_path / TRACE_FILE))
    }
    assert found == {(0, 1), (1, 0), (2, 3), (3, 2)}


STREAMING = {
    "islands": 2,
    "every": 4,
    "fragments": 2,
    "delay": 1,
    "local_fraction": 0.5,
}


@pytest.mark.parametrize(
    ("plan", "outer"),
    [
        (ONE_RANK_EACH, STREAMING),
        ({"stages": 2, "replicas": 4}, {**STREAMING, "fragments": 4, "delay": 0}),
        (ONE_RANK_EACH, {"islands": 2, "every": 4, "delay": 3}),
    ],
)
def test_fragments_take_their_steps_as_in_one_process(
    tmp_path: Path, dataset: Path, plan: dict[str, Any], outer: dict[str, Any]
):
    tree = tiny_tree(tmp_path, dataset, plan=plan, outer=outer, train={"steps": 8})
    metrics = run_tree(tree)
    inner = inner_training(tree)
    run = replay(inner.start, OuterConfig(**outer), num_steps=8)
    for done in range(1, 9):
        run.step(done, inner.step)
    assert_trained_as(tmp_path, metrics, inner, run.anchor)


EAGER = {"islands": 2, "every": 2, "learning_rate": 0.4, "eager": True}


@pytest.mark.parametrize(
    "plan",
    [{"stages": 2, "replicas": 4}, {"stages": 1, "replicas": 2, "shares": (5, 3)}],
)
def test_eager_updates_are_those_of_islands_with_anchors_of_their_own(
    tmp_path: Path, dataset: Path, plan: dict[str, Any]
):
    tree = small_tree(
        tmp_path, dataset, plan=plan, outer=EAGER, train={"steps": 8}, checkpoint={"keep": 9}
    )
    metrics = run_tree(tree)
    inner = inner_training(tree)
    setting = Setting(weights=[len(rows) / 8 for rows in inner.rows], every=2, eta=0.4, mu=0.9)
    first = inner.start
    rounds, sums = eager(packed(first), flat_step(inner), setting, num_steps=8)
    shapes = {name: each.shape for name, each in first.items()}
    for number, anchors in enumerate(rounds[:-1], 1):
        saved = open_checkpoint(tmp_path / "checkpoints" / f"step-{2 * number:08}")
        for island, anchor in enumerate(anchors):
            for name, values in unpacked(anchor, shapes).items():
                found = saved.read([f"island.{island}.{name}"])[f"island.{island}.{name}"]
                np.testing.assert_allclose(found, values, rtol=2e-3, atol=2e-5, err_msg=name)
    # After the last step the anchor of all has every outer gradient.
    anchor, momentum = packed(first), np.zeros_like(packed(first))
    for total in sums:
        momentum = 0.9 * momentum + total
        anchor = anchor - 0.4 * (total + 0.9 * momentum)
    assert_trained_as(tmp_path, metrics, inner, unpacked(anchor, shapes))


def test_one_eager_island_without_momentum_is_plain_training(tmp_path: Path, dataset: Path):
    one = {**EAGER, "islands": 1, "learning_rate": 1.0, "momentum": 0.0, "fragments": 2}
    sections = {"plan": ONE_RANK_EACH, "train": {"steps": 6}}
    found = run_tree(small_tree(tmp_path / "eager", dataset, **sections, outer=one))
    expected = run_tree(small_tree(tmp_path / "plain", dataset, **sections))
    assert [m.loss for m in found] == pytest.approx([m.loss for m in expected], rel=ROUNDING)
    assert found[-1].eval_loss == pytest.approx(expected[-1].eval_loss, rel=ROUNDING)


def test_the_bytes_between_islands_are_those_of_the_closed_form(tmp_path: Path, dataset: Path):
    plan, num_values = {"stages": 1, "replicas": 4}, 0
    tree = small_tree(tmp_path, dataset, plan=plan, outer=TWO)
    metrics = run_tree(tree)
    num_values = sum(each.size for each in anchor_of(tmp_path).values())
    # Two islands: each sends every value once, to be summed or as a sum: 2 (M - 1) / M per value.
    assert [m.outer_bytes for m in metrics] == [None, 2 * 4 * num_values] * 2


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> list[StepMetrics]:
    """Return the metrics of a run without a codec."""
    folder = tmp_path_factory.mktemp("runs") / "exact"
    return run_tree(small_tree(folder, dataset, plan=ONE_RANK_EACH, outer=TWO))


@pytest.mark.parametrize(
    ("codec", "bytes_per_value", "nearness"),
    [("bf16", 2, 1e-3), ("int8", 1 + 1 / 64, 2e-3), ("top_k", 8 / 4, 5e-2)],
)
def test_codecs_save_bytes_and_keep_the_loss(
    tmp_path: Path,
    dataset: Path,
    exact: list[StepMetrics],
    codec: str,
    bytes_per_value: float,
    nearness: float,
):
    outer = {**TWO, "codec": codec, "top_k_fraction": 0.25}
    coded = run_tree(small_tree(tmp_path, dataset, plan=ONE_RANK_EACH, outer=outer))
    assert exact[1].outer_bytes is not None
    expected = exact[1].outer_bytes / 4 * bytes_per_value
    assert coded[1].outer_bytes == pytest.approx(expected, rel=5e-3)
    assert [m.loss for m in coded] == pytest.approx([m.loss for m in exact], rel=nearness)
    assert coded[-1].loss != exact[-1].loss


A_PERIOD = (4, 5, 6, 7)
"""Steps at every distance from those of the outer loop, which come back after four."""
RESUMED = [
    {"plan": ONE_RANK_EACH, "outer": {**STREAMING, "codec": "top_k", "top_k_fraction": 0.1}},
    {"plan": {"stages": 2, "replicas": 2}, "outer": STREAMING},
    {"plan": {"stages": 1, "replicas": 4}, "outer": {"islands": 2, "every": 4, "delay": 2}},
    {
        "plan": ONE_RANK_EACH,
        "outer": {"islands": 2, "every": 4},
        "model": {"compute_dtype": "float16"},
    },
    {"plan": {"stages": 2, "replicas": 2}, "outer": {**EAGER, "every": 4, "fragments": 2}},
]


@pytest.mark.parametrize(
    ("sections", "steps"),
    [*zip(RESUMED, (A_PERIOD, (4,), (5,), (3,), A_PERIOD), strict=True)],
)
def test_a_run_resumes_bit_by_bit(
    tmp_path: Path, dataset: Path, sections: dict[str, Any], steps: tuple[int, ...]
):
    sections = {**sections, "train": {"steps": 8}, "checkpoint": {"every": 1, "keep": 9}}
    whole = tmp_path / "whole"
    expected = run_tree(small_tree(whole, dataset, **sections))
    for step in steps:
        folder = tmp_path / str(step)
        shutil.copytree(whole, folder)
        for later in range(step + 1, 9):
            shutil.rmtree(folder / "checkpoints" / f"step-{later:08}")
        found = run_tree(small_tree(folder, dataset, **sections), resume=True)
        for name in ("loss", "eval_loss", "grad_norm", "loss_scale"):
            values = [[getattr(m, name) for m in run] for run in (found, expected)]
            assert values[0] == values[1], (step, name)
        resumed, unbroken = tensors_of(folder), tensors_of(whole)
        assert resumed.keys() == unbroken.keys()
        assert all(resumed[name].tobytes() == unbroken[name].tobytes() for name in resumed), step


def test_a_run_resumes_with_other_stages_within_its_islands(tmp_path: Path, dataset: Path):
    sections = {"outer": {"islands": 2, "every": 4}, "train": {"steps": 8}}
    whole, folder = tmp_path / "whole", tmp_path / "resumed"
    expected = run_tree(small_tree(whole, dataset, plan=ONE_RANK_EACH, **sections))
    shutil.copytree(whole, folder)
    # From step 6, where the islands are apart.
    shutil.rmtree(folder / "checkpoints" / "step-00000008")
    other = small_tree(folder, dataset, plan={"stages": 2, "replicas": 4}, **sections)
    resumed = run_tree(other, resume=True)
    assert [m.loss for m in resumed] == pytest.approx([m.loss for m in expected], rel=ROUNDING)


def test_all_islands_have_one_anchor_and_the_checkpoint_is_a_model(tmp_path: Path, dataset: Path):
    outer = {**STREAMING, "fragments": 1, "delay": 2}
    sections = {"plan": ONE_RANK_EACH, "outer": outer, "train": {"steps": 8}}
    run_tree(small_tree(tmp_path, dataset, **sections, checkpoint={"every": 3, "keep": 9}))
    middle = open_checkpoint(tmp_path / "checkpoints" / "step-00000006")
    # After six steps the islands are apart: the plain names are the anchor, and none of theirs.
    _, params = restored_model(middle)
    names = list(flatten(params, first_layer=0))
    found = middle.read([*names, *(f"island.{m}.{name}" for m in (0, 1) for name in names)])
    for name in names:
        three = [found[each] for each in (name, f"island.0.{name}", f"island.1.{name}")]
        assert len({each.tobytes() for each in three}) == 3 or three[0].size < 64, name
    # At the end they are the anchor, and are not saved again.
    assert not [name for name in tensors_of(tmp_path) if name.startswith("island.0.blocks.")]


def test_metrics_say_where_outer_steps_ended(tmp_path: Path, dataset: Path):
    tree = small_tree(tmp_path, dataset, plan=ONE_RANK_EACH, outer=TWO)
    run_tree(tree)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "run" not in line]
    assert [line["step"] for line in steps if line["outer_bytes"]] == [2, 4]
    assert lines[0]["run"]["config"]["outer"]["islands"] == 2
