"""Runs as a user starts them: by `jaxpipe train` alone, and by `mpirun`."""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from jaxpipe.cli.command_table import single_commands
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from tests.cli.conftest import WriteConfig
from tests.helpers import mpi_command, mpi_environment
from tests.runtime.training import run_tree, tiny_tree

REPOSITORY = Path(__file__).parents[2]
JAXPIPE = (sys.executable, "-m", "jaxpipe")


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        cwd=REPOSITORY,
        env=mpi_environment(),
        check=False,
    )


def measured(folder: Path) -> list[StepMetrics]:
    return read_metrics(folder / "metrics.jsonl")


@pytest.mark.mpi
def test_train_starts_its_ranks_and_says_what_came_out(
    write_config: WriteConfig, tmp_path: Path, dataset: Path
) -> None:
    sections: dict[str, dict[str, Any]] = {
        "plan": {"replicas": 1},
        "sample": {"prompt": "1 plus", "tokens": 12},
    }
    config = write_config(**sections, run={"pictures": True})
    alone = run([*JAXPIPE, "train", str(config)])
    assert alone.returncode == 0, alone.stderr
    # On a slow machine, compilation takes long enough for lines about its progress.
    progress = r"(starting the ranks|compiling the stages|sampling and drawing)\b.*"
    assert [line for line in alone.stderr.splitlines() if not re.fullmatch(progress, line)] == []
    for words in (
        "2 ranks, 2 stages x 1 replica, on cluster laptop",
        "replica 0  rank 0 on here-0:0",
        "step     4/4",
        "held out",
        "bubble",
        "in theory",
        "sample of the trained model:\n\n1 plus",
        f"checkpoint  {tmp_path}/run/checkpoints/step-00000004",
        f"plan        {tmp_path}/run/plan.toml",
        f"trace       {tmp_path}/run/trace.json",
        f"picture     {tmp_path}/run/timeline.png",
        f"losses      {tmp_path}/run/losses.png",
    ):
        assert words in alone.stdout, alone.stdout

    text = run([*JAXPIPE, "generate", str(tmp_path / "run"), "--prompt", "2 plus", "--tokens", "9"])
    assert text.stdout.startswith("2 plus")
    assert len(text.stdout.strip()) > len("2 plus")

    # An `mpirun` of one's own continues with the same plan, and computes the bits of threads.
    plan = (tmp_path / "run" / "plan.toml").read_text()
    more = ("train", str(config), "--resume", "--set", "train.steps=6")
    resumed = run(mpi_command(2, "-m", "jaxpipe", *more))
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming after step 4/6, from {tmp_path}/run/checkpoints/step-00000004" in (
        resumed.stdout
    )
    assert (tmp_path / "run" / "plan.toml").read_text() == plan
    in_threads = run_tree(tiny_tree(tmp_path / "threads", dataset, **sections))
    steps = measured(tmp_path / "run")
    assert [m.step for m in steps] == [1, 2, 3, 4, 5, 6]
    assert [m.loss for m in steps[:4]] == [m.loss for m in in_threads]

    complete = run([*JAXPIPE, *more])
    assert complete.returncode == 0, complete.stderr
    assert complete.stdout.startswith("the run is complete: ")
    assert "compiling" not in complete.stdout


@pytest.mark.mpi
def test_codecs_and_libraries_carry_a_run_over_mpi(
    write_config: WriteConfig, tmp_path: Path, dataset: Path
) -> None:
    sections = {
        "plan": {"all_reduce": "hierarchical"},
        "comm": {"boundary": "bf16", "gradients": "int8"},
    }
    in_threads = run_tree(tiny_tree(tmp_path / "threads", dataset, **sections))
    config = write_config(**sections)
    coded = run([*JAXPIPE, "train", str(config)])
    assert coded.returncode == 0, coded.stderr
    for words in ("4 ranks, 2 stages x 2 replicas, on cluster laptop", "replica 1  rank 2 on"):
        assert words in coded.stdout, coded.stdout
    assert [m.loss for m in measured(tmp_path / "run")] == [m.loss for m in in_threads]
    assert [m.sent_bytes for m in measured(tmp_path / "run")] == [m.sent_bytes for m in in_threads]

    sums = ("comm.gradients=none", "comm.boundary=none", "plan.stages=1")
    plain = (*sums, "plan.all_reduce=library", f"run.folder={tmp_path}/library")
    library = run([*JAXPIPE, "train", str(config), *(w for s in plain for w in ("--set", s))])
    assert library.returncode == 0, library.stderr
    losses = [m.loss for m in measured(tmp_path / "library")]
    assert losses == pytest.approx([m.loss for m in in_threads], rel=1e-3)


@pytest.mark.mpi
def test_a_rank_that_raises_ends_the_job(write_config: WriteConfig, tmp_path: Path) -> None:
    config = write_config(plan={"replicas": 1})
    job = run(mpi_command(2, "-m", "tests.programs.raising_rank", str(config)))
    assert time.time() - (tmp_path / "raised").stat().st_mtime < 5.0
    assert job.returncode != 0
    assert job.stderr.splitlines()[0] == "rank 1: ValueError: stage 1 has no more memory"
    assert "in train_step" in (tmp_path / "run" / "rank-1-error.txt").read_text()
    assert_gone(config)


@pytest.mark.mpi
def test_a_killed_run_leaves_no_process_behind(write_config: WriteConfig, tmp_path: Path) -> None:
    config = write_config(plan={"replicas": 1}, train={"steps": 100_000, "eval_every": 100_000})
    with subprocess.Popen([*JAXPIPE, "train", str(config)], cwd=REPOSITORY) as process:
        deadline = time.monotonic() + 120.0
        while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.kill()
    assert_gone(config)


def assert_gone(config: Path) -> None:
    """Assert that within 5 s no process has this configuration on its command line."""
    left = [p for p in psutil.process_iter(["cmdline"]) if str(config) in (p.info["cmdline"] or ())]
    _, alive = psutil.wait_procs(left, timeout=5.0)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.mpi
def test_a_mistake_that_all_ranks_find_is_told_once(write_config: WriteConfig) -> None:
    config = write_config(plan={"stages": 1}, train={"batch": 7})
    job = run(mpi_command(2, "-m", "jaxpipe", "train", str(config)))
    assert job.returncode == 2
    assert job.stderr.count("jaxpipe: ") == 1
    assert job.stderr.startswith("jaxpipe: `train.batch` must be divisible by")


def test_show_draws_the_plan(write_config: WriteConfig) -> None:
    shown = run([*JAXPIPE, "show", str(write_config(plan={"schedule": "gpipe"}))])
    assert shown.returncode == 0, shown.stderr
    assert "stage 0: layers 0-1" in shown.stdout
    assert "stage 1  .  0  1  2  3 [0][1][2][3] ." in shown.stdout


def test_a_shown_schedule_may_be_edited_and_used(write_config: WriteConfig, tmp_path: Path) -> None:
    config, file = str(write_config(plan={"schedule": "gpipe"})), tmp_path / "schedule.csv"
    written = run([*JAXPIPE, "show", config, "--schedule-csv", str(file)])
    assert written.returncode == 0, written.stderr
    assert f"next: jaxpipe train {config} --set plan.schedule_file={file}" in written.stdout
    read = run([*JAXPIPE, "show", config, "--set", f"plan.schedule_file={file}"])
    assert "stage 1  .  0  1  2  3 [0][1][2][3] ." in read.stdout


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys; from jaxpipe.cli.main import main\n"
        f"for command in {['', 'topo', *single_commands()]!r}:\n"
        "    try: main([*command.split(), '--help'])\n"
        "    except SystemExit: pass\n"
        "    slow = {'jax', 'flax', 'mpi4py', 'jaxpipe.config'} & set(sys.modules)\n"
        "    if slow: sys.exit(f'{command} --help imports {slow}')"
    )
    helped = run([sys.executable, "-c", code])
    assert helped.returncode == 0, helped.stderr
    assert helped.stdout.count("usage: ") == 2 + len(single_commands())
