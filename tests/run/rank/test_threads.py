"""Training from Python, with the ranks as threads: the files and the losses of any run."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.config import config_from
from jaxpipe.errors import ConfigError
from jaxpipe.models import GptConfig, build_model
from jaxpipe.models.gpt import Gpt
from jaxpipe.run.rank.threads import train
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from tests.runtime.training import run_tree, tiny_tree

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_once")]


def losses(metrics: Sequence[StepMetrics]) -> list[float]:
    return [each.loss for each in metrics]


def test_it_trains_as_the_ranks_of_a_run_do_and_resumes(tmp_path: Path, dataset: Path) -> None:
    two = {"plan": {"replicas": 1}}
    expected = run_tree(tiny_tree(tmp_path / "expected", dataset, **two))
    tree, seen = tiny_tree(tmp_path / "run", dataset, **two), list[StepMetrics]()
    outcome = train(config_from(tree), observe=seen.append)
    assert losses(seen) == losses(expected)
    assert losses(read_metrics(outcome.metrics)) == losses(expected)
    assert outcome.trace is not None
    assert outcome.trace.exists()

    with pytest.raises(ConfigError, match="which a run does not overwrite"):
        train(config_from(tree))
    more = {**tree, "train": {**tree["train"], "steps": 5}}
    train(config_from(more), resume=True)
    assert [each.step for each in read_metrics(outcome.metrics)] == [1, 2, 3, 4, 5]


def test_links_are_emulated_if_the_configuration_says_so(tmp_path: Path, dataset: Path) -> None:
    shaped = {"folder": str(tmp_path / "run"), "transport": "shaped", "link_scale": 0.01}
    tree = tiny_tree(tmp_path / "run", dataset, run=shaped, plan={"replicas": 1})
    plain = tiny_tree(tmp_path / "plain", dataset, plan={"replicas": 1})
    train(config_from(tree))
    assert losses(read_metrics(tmp_path / "run" / "metrics.jsonl")) == losses(run_tree(plain))


def test_a_model_of_the_user_takes_the_place_of_the_configured_one(
    tmp_path: Path, dataset: Path
) -> None:
    config = config_from(tiny_tree(tmp_path / "run", dataset, plan={"replicas": 1}))
    calls: list[str] = []

    class Recording(Gpt):
        def init(self, *args: Any, **kwargs: Any) -> Any:
            calls.append("init")
            return super().init(*args, **kwargs)

    assert isinstance(config.model, GptConfig)
    train(config, model=Recording(config.model))
    assert calls

    other = config_from(tiny_tree(tmp_path / "run", dataset, model={"num_layers": 4}))
    expected = "`model.num_layers` is 3, but the given model has 4; set `model.num_layers` to that"
    with pytest.raises(ConfigError, match=expected):
        train(config, model=build_model(other.model), resume=True)


# Islands stop where they meet: after a step that all of them have taken.
@pytest.mark.parametrize(
    ("sections", "every"),
    [
        ({"plan": {"replicas": 1}}, 1),
        ({"plan": {"stages": 1}, "outer": {"islands": 2, "every": 5}}, 5),
    ],
)
def test_an_interrupted_call_leaves_a_checkpoint_and_no_thread(
    sections: dict[str, dict[str, Any]],
    every: int,
    tmp_path: Path,
    dataset: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    many = {"steps": 10_000, "eval_every": 10_000}
    tree = tiny_tree(tmp_path / "run", dataset, **sections, train=many)
    tree["checkpoint"]["every"] = 10_000
    config = config_from(tree)

    main = threading.main_thread().ident
    assert main is not None

    def interrupt_after_two(metrics: StepMetrics) -> None:
        if metrics.step == 2:
            signal.pthread_kill(main, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, observe=interrupt_after_two)
    step = open_checkpoint(latest(tmp_path / "run")).step
    assert 2 <= step < 10_000
    assert step % every == 0
    assert f"stopped on request after step {step}/10000" in caplog.text

    more = {**tree, "train": {**tree["train"], "steps": step + every}}
    train(config_from(more), resume=True)
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1].step == step + every


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"transport": "nccl"}, "`run.transport` is nccl"),
        ({"compute": "paced"}, "`run.compute` is paced"),
        ({"survive": "shrink"}, "`run.survive` is shrink"),
    ],
)
def test_what_threads_cannot_do_is_refused(
    section: dict[str, str], field: str, tmp_path: Path, dataset: Path
) -> None:
    tree = tiny_tree(tmp_path / "run", dataset, run={"folder": str(tmp_path / "run"), **section})
    with pytest.raises(ConfigError, match=f"{field}; leave it out, or use `jaxpipe train`"):
        train(config_from(tree))


def test_threads_have_no_library_that_sums(tmp_path: Path, dataset: Path) -> None:
    tree = tiny_tree(tmp_path / "run", dataset, plan={"all_reduce": "library"})
    with pytest.raises(ConfigError, match=r"`plan.all_reduce` \(library\) needs processes"):
        train(config_from(tree))
