"""`jaxpipe replay` after a run of real processes, of which one was killed; and its mistakes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.cli.main import main
from jaxpipe.runtime.hooks import Hooks
from jaxpipe.topo.toml_text import toml_text
from tests.runtime.training import small_tree

ROOT = Path(__file__).parents[2]
KILLED_AT = 4
QUORUM: dict[str, Any] = {"islands": 2, "every": 2, "least": 1, "grace_s": 0.2, "timeout_s": 300.0}


class Kill(Hooks):
    """Ends the process as the system does that has no memory left."""

    def after_read(self, *_: Any, step: int, **__: Any) -> None:
        """End before the step is trained."""
        if step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


class Wait(Hooks):
    """Keeps an island from its end until the other one has come back: the server would end, too."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def after_read(self, *_: Any, step: int, **__: Any) -> None:
        """Wait before the step is trained."""
        if step == KILLED_AT:
            until(lambda: joins_in(self._log) == 3)


def killed(config: Path, rank: int) -> Hooks:
    """Return the hooks of a rank that is killed."""
    del config, rank
    return Kill()


def waiting(config: Path, rank: int) -> Hooks:
    """Return the hooks of a rank that waits."""
    del rank
    return Wait(config.parent / "server" / "merges.jsonl")


def files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def joins_in(log: Path) -> int:
    return log.read_text().count('"joined":true')


def until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 200
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def write_config(folder: Path, dataset: Path) -> None:
    tree = small_tree(
        Path("run"),
        dataset,
        plan={"replicas": 1},
        train={"steps": 10, "eval_every": 0},
        checkpoint={"every": 1},
        run={"transport": "mpi"},
    )
    (folder / "c.toml").write_text(toml_text({**tree, "quorum": QUORUM}))


def jaxpipe(folder: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "jaxpipe", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def island(folder: Path, number: int, *words: str) -> "subprocess.Popen[str]":
    settings = (
        *("quorum.server=server", f"quorum.island={number}", f"run.folder=island-{number}"),
        f"plan.stages={2 - number}",  # two ranks and one
    )
    chosen = (word for setting in settings for word in ("--set", setting))
    return jaxpipe(folder, "train", "c.toml", *chosen, *words)


@pytest.mark.mpi
def test_a_run_of_processes_is_replayed_and_a_flipped_bit_is_named(
    tmp_path: Path,
    dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_config(tmp_path, dataset)
    server = jaxpipe(tmp_path, "merge", "c.toml", "--out", "server")
    runs: list[subprocess.Popen[str]] = []
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("merging at ")
        runs.append(island(tmp_path, 1, "--hooks", "tests.cli.test_replay:killed"))
        output, _ = runs[0].communicate(timeout=200)
        assert runs[0].returncode, output
        runs.append(island(tmp_path, 0, "--hooks", "tests.cli.test_replay:waiting"))
        until(lambda: joins_in(tmp_path / "server" / "merges.jsonl") == 2)
        runs.append(island(tmp_path, 1, "--resume"))
        for run in runs[1:]:
            output, _ = run.communicate(timeout=200)
            assert run.returncode == 0, output
        server.communicate(timeout=60)
    finally:
        for process in (*runs, server):
            process.kill()
            process.communicate(timeout=60)
    monkeypatch.chdir(tmp_path)
    words = ["replay", "server", "island-0", "island-1"]
    before = files_of(tmp_path)
    assert main(words) == 0, capsys.readouterr()
    assert files_of(tmp_path) == before
    assert "the run of the log, bit for bit: " in capsys.readouterr().out

    log = tmp_path / "server" / "merges.jsonl"
    start, digest, end = log.read_text().rpartition('"kind":"merged","anchor":2,"digest":"')
    flipped = f"{int(end[0], 16) ^ 1:x}{end[1:]}"
    log.write_text(start + digest + flipped)
    assert main(words) == 1
    assert "NOT the run of the log: anchor 2 differs" in capsys.readouterr().out


LOG = """
{"kind":"began","anchor":0,"digest":"","islands":2,"learning_rate":0.7,"momentum":0.9,"discount":0.5,
"codec":"none","batch":8,"seed":1,"versions":"1"}
{"kind":"first","island":0,"digest":"a"}
{"kind":"given","island":0,"anchor":0,"step":0,"joined":true}
{"kind":"merged","anchor":1,"digest":"b","islands":[{"island":0,"base":0,"step":4,"steps":4,
"tokens":9.0,"digest":"c","weight":1.0}]}
"""


def set_in(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    """Return what changes a field of the configuration of an island."""
    section, _, key = name.partition(".")
    return lambda tree: tree[section].update({key: value})


@pytest.mark.parametrize(
    ("log", "change", "words"),
    [
        ("", None, "`merges.jsonl` in server is empty: no merge server has begun there"),
        ("[]", None, "line 1 of the log server/merges.jsonl is no event of a merge server"),
        (LOG[: LOG.index('{"kind":"merged"')], None, "has no merge: there is nothing to replay"),
        (LOG.replace('"seed":1', '"seed":1,"more":1'), None, "line 1 of the log"),
        (LOG.replace('"anchor":1', '"anchor":2'), None, "tells no run: line 4: `anchor` is 2"),
        (LOG.replace('"momentum":0.9', '"momentum":1.5'), None, "tells no run: `momentum`"),
        (LOG.replace('"seed":1', '"seed":2'), None, "`run.seed` is 1 in island, and 2 in the log"),
        (LOG, set_in("quorum.server", ""), "`quorum.server` is not set in island"),
        (LOG, set_in("quorum.island", 1), "`islands` has no folder of island 0"),
        (LOG, set_in("train.steps", 3), "`train.steps` is 3 in island, and its island has trained"),
        (LOG, set_in("comm.gradients", "top_k"), "`comm.gradients` is top_k in island"),
    ],
)
def test_mistakes_are_one_line(
    log: str,
    change: Callable[[dict[str, Any]], None] | None,
    words: str,
    tmp_path: Path,
    dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = small_tree(Path("run"), dataset, plan={"stages": 1, "replicas": 1}, comm={})
    tree["quorum"] = {**QUORUM, "server": "server", "island": 0}
    if change is not None:
        change(tree)
    for folder, name, text in (
        ("server", "merges.jsonl", log.replace(",\n", ",").lstrip()),
        ("island", "run.toml", toml_text(tree)),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["replay", "server", "island"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert words in errors


def test_a_folder_without_a_log_is_named(
    tmp_path: Path,
    dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["replay", "nowhere", "island"]) == 2
    assert "name the folder of a merge server" in capsys.readouterr().err
