"""`jaxpipe emulate`: ranks in namespaces, their bytes over emulated links, and no traces left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jaxpipe import topo
from jaxpipe.cli.emulate import ended_by_signals
from jaxpipe.cli.main import main
from jaxpipe.plan import default_plan, write_plan
from tests.cli.conftest import WriteConfig
from tests.cli.test_runs import JAXPIPE, REPOSITORY, measured, run
from tests.helpers import mpi_command
from tests.plan_section import decided
from tests.runtime.training import run_tree, tiny_tree
from tests.topo.emulate.machine import leftovers, needs_namespaces

_RANK = """
import sys
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
with open(f"{sys.argv[1]}/{comm.rank}", "w") as file:
    file.write(MPI.Get_processor_name())
comm.Allreduce(MPI.IN_PLACE, np.zeros(int(sys.argv[2])))
comm.Barrier()
"""


def emulate(*words: str) -> subprocess.CompletedProcess[str]:
    return run([*JAXPIPE, "emulate", *words])


def places(folder: Path) -> dict[int, str]:
    return {int(path.name): path.read_text() for path in folder.iterdir()}


def rank_job(num_ranks: int, folder: Path, size: int = 100_000) -> list[str]:
    folder.mkdir()
    return mpi_command(num_ranks, "-c", _RANK, str(folder), str(size))


@pytest.mark.root
def test_ranks_run_on_their_hosts_and_their_bytes_cross_the_links(tmp_path: Path):
    needs_namespaces()
    job = rank_job(3, tmp_path / "ranks")
    done = emulate("two-region", "--engine", "relay", "--", *job)
    assert done.returncode == 0, done.stderr
    assert places(tmp_path / "ranks") == {0: "ohio-0", 1: "ohio-1", 2: "virginia-0"}
    assert "4 hosts of cluster two-region, each a network namespace, joined by relay" in (
        done.stderr
    )
    table = [line.split() for line in done.stderr.splitlines()]
    hosts = {words[0]: words for words in table if len(words) == 4 and words[1][0].isdigit()}
    assert [hosts[name][3] for name in ("ohio-0", "ohio-1", "virginia-0")] == ["0", "1", "2"]
    sent = {name: int(words[1].replace(",", "")) for name, words in hosts.items()}
    assert sum(sent.values()) > 2 * 800_000
    assert sent["virginia-1"] == 0


@pytest.mark.root
def test_a_plan_says_where_ranks_run(tmp_path: Path):
    needs_namespaces()
    cluster = topo.load("two-region")
    plan = default_plan(decided(stages=2, replicas=1), cluster, num_layers=2, batch=1, tied=False)
    path = tmp_path / "plan.toml"
    write_plan(plan.on_devices(((3, 0),)), cluster, path)
    job = rank_job(2, tmp_path / "ranks")
    done = emulate("two-region", "--plan", str(path), "--", *job)
    assert done.returncode == 0, done.stderr
    assert places(tmp_path / "ranks") == {0: "virginia-1", 1: "ohio-0"}


@pytest.mark.root
def test_training_over_namespaces_has_the_losses_of_training_without(
    write_config: WriteConfig, tmp_path: Path, dataset: Path
):
    needs_namespaces()
    plan = {"cluster": "two-region", "stages": 2, "replicas": 1}
    unshaped = run_tree(tiny_tree(tmp_path / "unshaped", dataset, plan=plan))
    config = str(write_config(plan=plan))
    done = emulate("two-region", "--", *JAXPIPE, "train", config)
    assert done.returncode == 0, done.stderr
    seen = [line.split()[-1] for line in done.stderr.splitlines() if line.startswith("ohio-")]
    assert seen[:2] == ["0", "1"]
    emulated = measured(tmp_path / "run")
    assert [step.loss for step in emulated] == [step.loss for step in unshaped]


@pytest.mark.root
def test_ranks_that_run_elsewhere_end_the_command():
    needs_namespaces()
    sleeper = "import time; time.sleep(60)"
    job = ("env", "PMI_RANK=0", sys.executable, "-c", sleeper)
    done = emulate("laptop", "--", *job)
    assert done.returncode == 1
    assert "rank 0 ran on the machine itself, and belongs on here-0" in done.stderr


@pytest.mark.root
def test_a_command_can_run_on_one_host():
    needs_namespaces()
    done = emulate("two-region", "--in", "virginia-1", "--", "hostname")
    assert (done.returncode, done.stdout) == (0, "virginia-1\n"), done.stderr


@pytest.mark.root
def test_the_exit_code_is_the_commands():
    needs_namespaces()
    assert emulate("laptop", "--", "sh", "-c", "exit 7").returncode == 7


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_removes_everything(number: signal.Signals):
    needs_namespaces()
    heard = ["env", "--default-signal=INT"]  # which shells ignore in what they start with `&`
    words = ["emulate", "laptop", "--", "sh", "-c", "echo up; exec sleep 1000"]
    command = [*heard, *JAXPIPE, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert leftovers(process.pid)
        process.send_signal(number)
        try:
            assert process.wait(30) == 128 + number
        finally:
            process.kill()  # leaving `with` would wait without a deadline
    assert leftovers(process.pid) == []


@pytest.mark.root
def test_a_command_ends_with_an_emulation_that_is_killed():
    # The child ignores SIGTERM, as a run does that waits over links which no longer exist.
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(os.getpid(), flush=True); time.sleep(300)"
    )
    needs_namespaces()
    command = [*JAXPIPE, "emulate", "laptop", "--", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        numbers = (line for line in process.stdout if line.strip().isdecimal())
        child = psutil.Process(int(next(numbers)))
        process.kill()
        _, alive = psutil.wait_procs([child], timeout=20.0)
        for each in alive:
            each.kill()
    assert not alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_counts_where_python_discards_exceptions(number: signal.Signals):
    class Signals:
        def __del__(self) -> None:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    with ended_by_signals() as check_signals:
        check_signals()
        Signals()
        with pytest.raises(SystemExit) as ended:
            check_signals()
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.root
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["two-regoin", "--", "true"], "no cluster 'two-regoin': did you mean 'two-region'?"),
        (["laptop", "--scale", "0", "--", "true"], "`--scale` must be above 0 and at most"),
        (["laptop", "--loss", "1", "--", "true"], "`--loss` must be a part of the packets below 1"),
        (["laptop"], "runs a command: add `-- COMMAND`"),
        (["laptop", "--in", "tokyo", "--", "true"], "has no host 'tokyo': it has ['here-0']"),
    ],
)
def test_mistakes_take_one_line(capfd: pytest.CaptureFixture[str], words: list[str], said: str):
    if os.geteuid():
        pytest.skip("the first mistake is not to be root")
    assert main(["emulate", *words]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("jaxpipe: ")
    assert said in last


@pytest.mark.root
def test_a_command_that_is_not_there_takes_one_line():
    needs_namespaces()
    done = emulate("laptop", "--", "/no/such")
    assert done.returncode == 2
    assert "jaxpipe: `/no/such` cannot be run: No such file" in done.stderr.splitlines()[-1]


def test_who_is_not_root_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["emulate", "laptop", "--", "true"]) == 2
    assert "user 1000 is not root, which namespaces need" in capsys.readouterr().err
