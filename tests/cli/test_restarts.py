"""`jaxpipe run` keeps its folder for itself from the first attempt to the last."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from jaxpipe.cli.main import main
from jaxpipe.run.folder.folder_lock import holder_of
from tests.cli.conftest import WriteConfig


def test_the_folder_is_locked_over_all_attempts(
    write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders: list[int | None] = []

    def run_child(command: Sequence[str], *, poll: Callable[[], object]) -> int:
        assert "jaxpipe.cli.train" in command
        poll()
        holder = holder_of(tmp_path / "run")
        holders.append(None if holder is None else holder.process)
        return 1 if len(holders) == 1 else 0

    monkeypatch.setattr("jaxpipe.cli.run.run_child", run_child)
    assert main(["run", str(write_config())]) == 0
    assert holders == [os.getpid()] * 2
    assert holder_of(tmp_path / "run") is None
