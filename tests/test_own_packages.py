"""Another package `models` or `topo`: harmless in the working directory, elsewhere refused."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from jaxpipe.runtime.process.mpirun import launch
from tests.helpers import mpi_environment

ROOT = Path(__file__).parents[1]


def run(
    folder: Path, *command: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(params=["models", "topo"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A package of another project, with something in it."""
    folder = tmp_path / request.param
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('executed')\n")
    return folder


def test_the_working_directory_is_not_searched(other: Path):
    (other.parent / "optax.py").write_text("raise SystemExit('executed')\n")
    (other.parent / "rich.py").write_text("raise SystemExit('executed')\n")
    done = run(other.parent, "-P", "-m", "jaxpipe", "topo", "show", "laptop")
    assert (done.returncode, done.stderr) == (0, "")
    command = Path(sys.executable).parent / "jaxpipe"
    assert run(other.parent, str(command), "show", "--help").returncode == 0


@pytest.mark.parametrize("command", [("topo", "list"), ("doctor",), ("train", "x.toml")])
def test_a_package_in_its_place_is_one_error(other: Path, command: tuple[str, ...]):
    done = run(other.parent, "-m", "jaxpipe", *command)
    expected = rf"jaxpipe: .*own package `{other.name}`.* finds {re.escape(str(other))} instead: .*"
    assert done.returncode == 2
    assert re.fullmatch(expected, done.stderr.strip())


def test_a_folder_without_code_is_one_too(tmp_path: Path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights.bin").touch()
    done = run(tmp_path, "-m", "jaxpipe", "topo", "list")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert str(tmp_path / "models") in done.stderr


def test_the_path_of_a_user_is_named(other: Path, tmp_path: Path):
    environment = {"PYTHONPATH": str(other.parent)}
    done = run(tmp_path, "-P", "-m", "jaxpipe", "topo", "list", environment=environment)
    assert done.returncode == 2
    assert f"leave {other.parent} out of `PYTHONPATH`" in done.stderr


@pytest.mark.parametrize("name", ["load_config", "load_cluster", "train"])
def test_a_library_says_it_as_well(other: Path, name: str):
    done = run(other.parent, "-c", f"from jaxpipe import {name}")
    assert done.returncode == 1
    assert f"finds {other} instead" in done.stderr.splitlines()[-1]


@pytest.mark.mpi
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # a worker may have JAX's threads
def test_ranks_do_not_search_the_working_directory(
    other: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(other.parent)
    for name, value in mpi_environment().items():
        monkeypatch.setenv(name, value)
    (other.parent / "tyro.py").write_text("raise SystemExit('executed')\n")
    assert launch(["topo", "list"], num_ranks=2) == 0
    printed = capfd.readouterr()
    assert printed.out.count("two-region") == 2, printed.err


def test_every_python_that_is_started_leaves_it_out():
    started = re.compile(r"sys\.executable,\s*\"(-[a-zA-Z]+)\"")
    found = [
        (path, option)
        for package in ("jaxpipe", "topo", "models")
        for path in (ROOT / package).rglob("*.py")
        for option in started.findall(path.read_text())
    ]
    assert len(found) >= 8
    assert [each for each in found if each[1] != "-P"] == []
