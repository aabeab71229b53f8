"""Hosts that share no folder: one is lost with its disk, and the run continues bit by bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.topo.emulate import Emulation, EngineKind, emulated
from jaxpipe.topo.emulate.namespaces import processes_in
from jaxpipe.topo.emulate.own_disks import disk_of
from jaxpipe.topo.toml_text import toml_text
from tests.runtime.training import Tree, run_tree, tiny_tree
from tests.topo.emulate.machine import leftovers, needs_namespaces

REPOSITORY = Path(__file__).parents[2]
STEPS = 6


@contextmanager
def training(emulation: Emulation, config: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start a run on the emulated hosts, as a user's own `mpirun` does."""
    program = (sys.executable, "-m", "jaxpipe", "train", str(config), *options)
    with subprocess.Popen(
        [*launch_command(find_mpirun(), num_ranks=2), *program],
        cwd=REPOSITORY,
        env=os.environ | dict(emulation.settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def completed(emulation: Emulation, config: Path, *options: str) -> str:
    with training(emulation, config, *options) as process:
        output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    return output


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    begin_s = time.monotonic()
    while not path.exists():
        assert time.monotonic() - begin_s < 200
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def steps_of(run: Path) -> dict[int, tuple[float, float | None, float]]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {r["step"]: (r["loss"], r["eval_loss"], r["grad_norm"]) for r in rows if "step" in r}


def last_shards(run: Path) -> dict[str, bytes]:
    folder = run / "checkpoints" / f"step-{STEPS:08d}"
    return {path.name: path.read_bytes() for path in folder.glob("stage-*.safetensors")}


@pytest.mark.root
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lost_host_and_its_disk_change_no_bit(tmp_path: Path, dataset: Path) -> None:
    needs_namespaces(EngineKind.UNSHAPED)
    disk, config = tmp_path / "disk", tmp_path / "config.toml"
    disk.mkdir()

    def tree(run: Path, data: Path) -> Tree:
        return tiny_tree(
            run,
            data,
            plan={"cluster": "two-region", "stages": 2, "replicas": 1},
            train={"steps": STEPS, "eval_every": STEPS},
            checkpoint={"every": 2},
        )

    config.write_text(toml_text(tree(disk / "run", disk / "dataset")))
    run_tree(tree(tmp_path / "undisturbed", dataset))
    with emulated(topo.load("two-region"), kind=EngineKind.UNSHAPED) as emulation:
        emulation.give_disks([disk])
        here, lost = (disk_of(emulation.owner, number, disk) for number in (0, 1))
        shutil.copytree(dataset, here / "dataset")
        with training(emulation, config, "--hooks", "tests.programs.paused_rank:paused") as process:
            wait_for(lost / "run" / "paused", process)
            for pid in processes_in([emulation.owner.namespace(1)]):
                os.kill(pid, signal.SIGKILL)
            process.wait(60)  # with 0: so does an mpirun that has lost a host
        assert sorted(path.name for path in lost.iterdir()) == ["run"]
        shutil.rmtree(lost / "run")
        output = completed(emulation, config, "--resume")
        assert f"resuming after step 2/{STEPS}" in output
        assert steps_of(here / "run") == steps_of(tmp_path / "undisturbed")
        assert list(steps_of(here / "run")) == list(range(1, STEPS + 1))
        expected = last_shards(tmp_path / "undisturbed")
        assert sorted(expected) == ["stage-0.safetensors", "stage-1.safetensors"]
        assert last_shards(here / "run") == last_shards(lost / "run") == expected
        assert list(disk.iterdir()) == []  # what a host writes is on its own disk alone
    assert leftovers(os.getpid()) == []
