"""A run over hosts with disks of their own: one joins, is lost again, and the losses stay."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.runtime.checkpoint.folders import committed_folders
from jaxpipe.topo.emulate import Emulation, EngineKind, emulated
from jaxpipe.topo.emulate.commands import run as run_program
from jaxpipe.topo.emulate.namespaces import processes_in
from jaxpipe.topo.emulate.own_disks import disk_of
from jaxpipe.topo.toml_text import toml_text
from tests.runtime.training import Tree, run_tree, tiny_tree
from tests.topo.emulate.machine import leftovers, needs_namespaces

REPOSITORY = Path(__file__).parents[2]
CLUSTER = "homogeneous:hosts=2,delay_ms=0,bandwidth_gbps=1e6"
JAXPIPE = (sys.executable, "-P", "-m", "jaxpipe")
STEPS = 64
"""At a quarter of a second each: a busy machine takes 10 s until a host has joined."""


def tree_of(run: Path, dataset: Path) -> Tree:
    return tiny_tree(
        run,
        dataset,
        plan={"cluster": CLUSTER, "devices": ["here-0:0"], "stages": 1, "replicas": 1},
        train={"steps": STEPS, "batch": 12, "eval_every": STEPS},
        optimizer={"learning_rate": 1e-3},  # a larger one amplifies roundings
        checkpoint={"every": 5},
    )


@contextmanager
def running(
    emulation: Emulation, host: str, *arguments: str, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("wb") as file,
        subprocess.Popen(
            [*emulation.enter(host), *JAXPIPE, *arguments],
            cwd=REPOSITORY,
            env=os.environ | dict(emulation.settings) | {"PYTHONPATH": str(REPOSITORY)},
            stdout=file,
            stderr=file,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def wait_until(is_so: Callable[[], object], log: Path, process: subprocess.Popen[bytes]) -> None:
    begin_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - begin_s < 120, log.read_text()
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)


def steps_of(run: Path) -> dict[int, float]:
    path = run / "metrics.jsonl"
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {row["step"]: row["loss"] for row in rows if "step" in row}


def lose(emulation: Emulation, number: int) -> None:
    """End all processes of a host, and take its links down."""
    namespace = emulation.owner.namespace(number)
    for device in ("control", "link0"):
        run_program("ip", "-n", namespace, "link", "set", device, "down")
    for pid in processes_in([namespace]):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.root
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_host_joins_and_is_lost_again(tmp_path: Path, dataset: Path) -> None:
    needs_namespaces(EngineKind.UNSHAPED)
    disk, config, log = tmp_path / "disk", tmp_path / "config.toml", tmp_path / "log"
    disk.mkdir()
    config.write_text(toml_text(tree_of(disk / "run", disk / "dataset")))
    run_tree(tree_of(tmp_path / "undisturbed", dataset))
    cluster = topo.load(CLUSTER)
    names = [host.name for host in cluster.hosts]
    with emulated(cluster, kind=EngineKind.UNSHAPED) as emulation:
        emulation.give_disks([disk])
        disks = [disk_of(emulation.owner, number, disk) for number in range(2)]
        shutil.copytree(dataset, disks[0] / "dataset")
        run, said = disks[0] / "run", tmp_path / "joined"
        start = ("run", str(config), "--hosts", "--hooks", "tests.programs.slow_steps:slow")
        with running(emulation, names[0], *start, log=log) as process:
            wait_until(lambda: len(steps_of(run)) >= 3, log, process)
            shutil.copy(run / "join.json", tmp_path / "join.json")
            words = ("join", str(tmp_path / "join.json"))
            with running(emulation, names[1], *words, log=said) as joiner:
                assert joiner.wait(120) == 0, log.read_text() + said.read_text()
            first = int(said.read_text().split("takes part from step ")[1].split()[0])
            wait_until(lambda: len(steps_of(run)) >= first + 5, log, process)
            assert committed_folders(disks[1] / "run")  # it trains, and saves on its disk
            lose(emulation, 1)
            assert process.wait(300) == 0, log.read_text()
        text = log.read_text()
        assert f"hosts that do not answer: {names[1]}" in text, text
        expected, found = steps_of(tmp_path / "undisturbed"), steps_of(run)
        assert list(found) == list(range(1, STEPS + 1))
        worst = max(abs(found[step] / expected[step] - 1) for step in expected)
        assert worst < 1e-5, (worst, text)
    assert leftovers(os.getpid()) == []
