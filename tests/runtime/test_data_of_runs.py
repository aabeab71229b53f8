"""Prompts that do not count, packed documents and mixtures: each plan trains as one rank does."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.inference.held_out_losses import held_out_losses
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.data import Fields, Source, prepare
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from tests.runtime.training import run_tree, small_tree

pytestmark = pytest.mark.slow

ROUNDING = 1e-4
UNLIKE = {"cuts": ((2,), (1, 1)), "shares": (2, 6), "schedule": "zb-h1"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Prepare prompts with completions of different lengths, and texts."""
    root = tmp_path_factory.mktemp("data")
    pairs = [{"p": f"{n} and {n}" + " " * (n % 7), "c": f"is {2 * n}"} for n in range(150)]
    texts = [{"text": f"the {n}th text" + " goes on" * (n % 4)} for n in range(120)]
    for name, rows, fields in (
        ("pairs", pairs, Fields(prompt="p", completion="c")),
        ("texts", texts, Fields()),
    ):
        path = root / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        prepare(Source(path=path, fields=fields), root / name, eval_fraction=0.3)
    return str(root / "pairs"), str(root / "texts")


def data_of(folders: tuple[str, str], *, pack: bool) -> dict[str, Any]:
    """Return one masked dataset, or packed documents of a mixture."""
    if not pack:
        return {"folder": folders[0]}
    weights = (2.0, 1.0)
    sources = [{"folder": f, "weight": w} for f, w in zip(folders, weights, strict=True)]
    return {"sources": sources, "pack": True}


def train(run: Path, data: dict[str, Any], *, resume: bool = False, **plan: Any) -> Any:
    tree = small_tree(run, Path("unused"))
    tree["data"] = data
    tree["plan"] = {"cluster": "laptop", "microbatch": 2, **plan}
    return run_tree(tree, resume=resume)


def numbers(metrics: list[StepMetrics]) -> list[list[float]]:
    return [[each.loss, each.grad_norm or 0.0, each.eval_loss or 0.0] for each in metrics]


@pytest.fixture(scope="module", params=[False, True], ids=["masked", "packed"])
def one_rank(
    request: pytest.FixtureRequest,
    folders: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Any]]:
    """Train on one rank, and return the folder of the run and its data."""
    run, data = tmp_path_factory.mktemp("run") / "one", data_of(folders, pack=request.param)
    train(run, data, stages=1, replicas=1)
    return run, data


def test_unlike_replicas_have_the_losses_of_one_rank(
    one_rank: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run, data = one_rank
    expected = read_metrics(run / "metrics.jsonl")
    # The replicas count different numbers of targets, and one of them is cut.
    found = train(tmp_path / "run", data, **UNLIKE)
    for ours, theirs in zip(numbers(found), numbers(expected), strict=True):
        assert ours == pytest.approx(theirs, rel=ROUNDING)


def test_a_resumed_run_reads_the_same_samples(
    one_rank: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run, data = one_rank
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    resumed = train(folder, data, resume=True, stages=1, replicas=1)
    assert numbers(resumed) == numbers(read_metrics(run / "metrics.jsonl"))


def test_evaluation_counts_the_same_targets(one_rank: tuple[Path, dict[str, Any]]) -> None:
    run, data = one_rank
    folders = [Path(folder) for folder in (data.get("folder"),) if folder]
    folders += [Path(source["folder"]) for source in data.get("sources", ())]
    checkpoint = open_checkpoint(latest(run))
    found = list(held_out_losses(checkpoint, folders[:1], most_windows=8))
    assert 0 < found[0].num_targets < 8 * 16
    if "folder" in data:  # of a mixture, the held-out loss is that of both
        last = read_metrics(run / "metrics.jsonl")[-1].eval_loss
        assert found[0].loss == pytest.approx(last, rel=ROUNDING)
