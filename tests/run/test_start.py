"""How a run is started: the command line of its ranks, and its hooks."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.run.start import overdue_end
from jaxpipe.run.train_request import TrainRequest, load_hooks
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks
from jaxpipe.runtime.watchdog import Cause, CauseKind, write_cause


def test_ranks_get_the_plan_file_and_all_that_the_launcher_got() -> None:
    request = TrainRequest(
        config=Path("a.toml"), settings=("train.steps=3", "run.seed=1"), resume=True, hooks="m:f"
    )
    of_rank = replace(request, plan=Path("run/plan.toml"), lock="12ab", is_supervised=True)
    assert of_rank.words[0] == "a.toml"  # so that a process can be found by it
    assert TrainRequest.of_words(of_rank.words) == of_rank


@pytest.mark.parametrize(("lock", "over"), [(None, []), ("12ab", ["--hosts"])])
def test_a_supervised_attempt_names_the_command_of_its_supervisor(
    lock: str | None, over: list[str]
) -> None:
    request = TrainRequest(config=Path("a.toml"), is_supervised=True, lock=lock)
    assert request.arguments == ["train", "a.toml"]
    words = ["next: jaxpipe run a.toml", *over, "--set plan.file=new.toml --resume"]
    assert request.resume_line(["plan.file=new.toml"]) == " ".join(words)


def test_hooks_are_made_for_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Path, int]] = []
    module = ModuleType("some_hooks")

    def make(config: Path, *, rank: int) -> Hooks:
        made.append((config, rank))
        return NO_HOOKS

    vars(module)["make"] = make
    monkeypatch.setitem(sys.modules, "some_hooks", module)
    assert load_hooks("some_hooks:make", Path("a.toml"), rank=3) is NO_HOOKS
    assert made == [(Path("a.toml"), 3)]
    assert load_hooks(None, Path("a.toml"), rank=3) is NO_HOOKS


@pytest.mark.parametrize("reference", ["", "nothing_of_the_kind:f", "json", "json:nothing"])
def test_hooks_that_are_not_there_are_refused(reference: str) -> None:
    with pytest.raises(ConfigError, match="`--hooks` names a function as MODULE:FUNCTION, is "):
        load_hooks(reference, Path("a.toml"), rank=0)


def test_a_run_is_overdue_ten_seconds_after_a_rank_has_written_why_it_ends(tmp_path: Path):
    now_s = [100.0]
    is_overdue = overdue_end(tmp_path, clock=lambda: now_s[0])
    assert not is_overdue()
    now_s[0] = 500.0
    assert not is_overdue()
    write_cause(tmp_path, Cause(kind=CauseKind.STOPPED, message="its host is gone", rank=1))
    assert not is_overdue()
    now_s[0] = 509.0
    assert not is_overdue()
    now_s[0] = 511.0
    assert is_overdue()
