"""`jaxpipe merge` as a user starts it: its folder, its end, and its second start."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.cli.main import main
from jaxpipe.outer import QuorumConfig
from jaxpipe.run.quorum.merge_line import MergeLine, server_address
from jaxpipe.runtime.checkpoint import latest, open_checkpoint

pytestmark = pytest.mark.slow

START = {"w": np.zeros(3, np.float32)}
CONFIG = """
run = {folder = "run"}
data = {folder = "data"}
model = {preset = "tiny"}
train = {batch = 8}
quorum = {islands = 2, least = 1, learning_rate = 1.0, momentum = 0.0, timeout_s = 20.0}
"""


@contextmanager
def merging(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a server, which has printed where it is."""
    line = [sys.executable, "-m", "jaxpipe", "merge", "c.toml", "--out", "server", *words]
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("merging at ")
            yield server
        finally:
            server.kill()


def deliver(folder: Path, *, base: int) -> np.ndarray:
    """Join as an island, deliver 1 for each parameter, and end."""
    quorum = QuorumConfig(server=str(folder / "server"), islands=2, timeout_s=20)
    address = server_address(quorum)
    line = MergeLine(address, quorum, batch=8, seed=0, versions=version("jaxpipe"), say=print)
    number, _ = line.start(START, step=2 * base)
    assert number == base
    number, anchor = line.deliver(
        {"w": np.ones(3, np.float32)}, base=base, step=2 * base + 2, steps=2, tokens=5
    )
    assert number == base + 1
    line.close()
    return anchor["w"]


def test_a_server_ends_with_its_islands_and_continues_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)
    for merge in range(2):
        with merging(tmp_path) as server:
            assert deliver(tmp_path, base=merge).tolist() == [-1.0 - merge] * 3
            output, _ = server.communicate(timeout=30)
            assert server.returncode == 0, output
            assert f"anchor {merge + 1}: islands (and inner steps) 0 (2)" in output
    lines = (tmp_path / "server" / "merges.jsonl").read_text().splitlines()
    log = [json.loads(line) for line in lines]
    assert [(line["kind"], line.get("anchor")) for line in log] == [
        *(("began", 0), ("first", None), ("given", 0), ("merged", 1), ("given", 1)),
        *(("began", 1), ("given", 1), ("merged", 2), ("given", 2)),
    ]
    checkpoint = open_checkpoint(latest(tmp_path / "server"))
    assert checkpoint.step == 2
    assert checkpoint.read(["w"])["w"].tolist() == [-2.0] * 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--listen", "here"), "`--listen` is 'here'"),
        (("--listen", "192.0.2.1:0"), "`--listen` must be a free address of this host"),
        (("--set", "quorum.least=3"), "`quorum.least` (3) must be at most `islands` (2)"),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert main(["merge", "c.toml", "--out", "server", *words]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert said in errors


def test_an_island_without_its_server_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "c.toml", "--check", "--set", "quorum.server=nowhere"]) == 2
    assert "`quorum.server` must be the `merge.json` of `jaxpipe merge`" in capsys.readouterr().err
