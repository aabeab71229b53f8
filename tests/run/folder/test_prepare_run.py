"""A run is prepared once: its plan is resolved, checked and written before any rank starts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.config import config_from, describe
from jaxpipe.errors import ConfigError
from jaxpipe.models import num_parameters
from jaxpipe.plan import ResolvedPlan, read_plan, read_resolved_plan, write_plan
from jaxpipe.run.folder.prepare_run import (
    PLAN_FILE,
    begin_folder,
    emulation_notice,
    prepare,
    resume_notice,
)
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, write_shard
from jaxpipe.runtime.run_config import RunConfig, TransportKind
from jaxpipe.runtime.watchdog import Cause, CauseKind, read_cause, write_cause
from tests.runtime.training import tiny_tree

CLUSTER = topo.load("two-region")


def test_the_folder_of_a_run_begins_with_its_plan(tmp_path: Path, dataset: Path) -> None:
    folder = tmp_path / "run"
    config = config_from(tiny_tree(folder, dataset, plan={"cluster": "two-region"}))
    prepared = prepare(config, resume=False)
    assert not folder.exists()  # checks change nothing
    folder.mkdir()
    write_cause(folder, Cause(kind=CauseKind.KILLED, message="the run before"))
    assert begin_folder(prepared) == folder / PLAN_FILE
    assert read_cause(folder) is None
    assert read_plan(folder / PLAN_FILE, CLUSTER) == prepared.plan
    assert read_resolved_plan(folder / PLAN_FILE) == ResolvedPlan.of(prepared.plan, CLUSTER)


def test_a_plan_file_with_a_schedule_of_its_own_may_shrink(tmp_path: Path, dataset: Path) -> None:
    sections = {"run": {"survive": "shrink"}, "plan": {"cluster": "two-region"}}
    section = prepare(config_from(tiny_tree(tmp_path / "run", dataset, **sections)), resume=False)
    file = tmp_path / "plan.toml"
    sections["plan"]["file"] = str(file)
    custom = replace(section.plan, schedule=section.plan.compute_schedule())
    write_plan(custom, CLUSTER, file)
    by_file = config_from(tiny_tree(tmp_path / "run", dataset, **sections))
    assert prepare(by_file, resume=False).plan == custom


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, dataset: Path) -> None:
    (tmp_path / "file").touch()
    config = config_from(tiny_tree(tmp_path / "file" / "run", dataset))
    with pytest.raises(ConfigError, match=r"`run\.folder` must be a folder that can be written"):
        begin_folder(prepare(config, resume=False))


def test_only_emulated_links_are_announced_and_scaled():
    run = RunConfig(folder="runs/x")
    assert emulation_notice(run, CLUSTER) is None
    shaped = replace(run, transport=TransportKind.SHAPED)
    assert emulation_notice(shaped, CLUSTER) == (
        "links are emulated: each message takes what it takes on cluster two-region, or longer"
    )
    with pytest.raises(
        ValueError, match=r"`link_scale` \(2\.0\) must be 1 where `transport` is nccl: only shaped"
    ):
        replace(run, transport=TransportKind.NCCL, link_scale=2.0)


def test_a_resumed_run_says_where_it_continues_or_that_it_is_complete(
    tmp_path: Path, dataset: Path
) -> None:
    config = config_from(tiny_tree(tmp_path / "run", dataset, train={"steps": 8}))
    layers = config.model.num_layers
    size = num_parameters(config.model, layers=layers, embed=True, head=True)
    parts = np.split(np.zeros(size, np.float32), range(1, layers))
    tensors = {f"x{number}": part for number, part in enumerate(parts)}
    partial = begin_checkpoint(tmp_path / "run", step=6)
    folder = commit(partial, list(write_shard(partial, "stage-0", tensors)), describe(config))
    prepared = prepare(config, resume=True)
    assert not prepared.is_complete
    assert prepared.checkpoint is not None
    expected = f"resuming after step 6/8, from {folder}"
    assert resume_notice(prepared.checkpoint, config) == expected

    shorter = replace(config, train=replace(config.train, steps=6))
    complete = prepare(shorter, resume=True)
    assert complete.is_complete
    assert resume_notice(prepared.checkpoint, shorter) == (
        f"the run is complete: {folder} is that of step 6, and `train.steps` is 6; raise it to "
        "train on"
    )


def test_files_of_a_run_without_checkpoint_are_replaced_with_a_notice(
    tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = prepare(config_from(tiny_tree(tmp_path, dataset)), resume=False)
    begin_folder(prepared)
    assert capsys.readouterr().err == ""
    begin_folder(prepared)
    assert capsys.readouterr().err == f"the result replaces {tmp_path / PLAN_FILE}\n"


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"run": {"folder": "/dev/null/run"}}, r"^`run\.folder` must be a folder .*: Not a dir"),
        ({"run": {"folder": "/proc/run"}}, r"^`run\.folder` must be a folder that can be written"),
        (
            {"checkpoint": {"folder": "memory://run"}},
            r"^`checkpoint\.folder` must be storage that all ranks share, is 'memory://run'",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_starts(
    tmp_path: Path, dataset: Path, sections: dict[str, dict[str, str]], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        prepare(config_from(tiny_tree(tmp_path / "run", dataset, **sections)), resume=False)
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["plan.toml", "metrics.jsonl", "run.toml", "cause.json", "ended"])
def test_a_folder_in_the_place_of_a_file_is_refused(
    name: str, tmp_path: Path, dataset: Path
) -> None:
    (tmp_path / "run" / name).mkdir(parents=True)
    config = config_from(tiny_tree(tmp_path / "run", dataset))
    with pytest.raises(
        ConfigError, match=rf"^`run\.folder` must hold a file '{name}', and .* is a"
    ):
        prepare(config, resume=False)
