"""A foreign package `models` or `topo` is harmless, in the working directory and elsewhere."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from jaxpipe.runtime.process.mpirun import launch
from jaxpipe.shadowing import NEEDED
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


@pytest.mark.parametrize("command", [("topo", "list"), ("show", "--help")])
def test_a_foreign_package_on_the_path_is_left_alone(other: Path, command: tuple[str, ...]):
    done = run(other.parent, "-m", "jaxpipe", *command)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(ROOT, "-P", "-m", "jaxpipe", *command, environment={"PYTHONPATH": str(other.parent)})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_foreign_project_imports_its_own_package_and_jaxpipe(other: Path):
    (other / "__init__.py").write_text("NAME = 'foreign'\n")
    code = (
        f"import {other.name}, jaxpipe.models.gpt\n"
        "from jaxpipe import load_config, load_cluster\n"
        f"print({other.name}.NAME, len(load_cluster('two-region')))"
    )
    done = run(other.parent, "-c", code)
    assert (done.returncode, done.stdout) == (0, "foreign 4\n"), done.stderr


@pytest.mark.parametrize("module", ["rich.py", "tyro/__init__.py", "jax.py"])
def test_a_module_in_place_of_a_dependency_is_one_line(module: str, tmp_path: Path):
    path = tmp_path / module
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit('executed')\n")
    done = run(tmp_path, "-m", "jaxpipe", "topo", "list")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"jaxpipe: Python would import {path} in place of a package")
    assert run(tmp_path, "-P", "-m", "jaxpipe", "topo", "list").returncode == 0


def test_a_folder_without_code_takes_nobodys_place(tmp_path: Path):
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "weights.bin").touch()
    assert run(tmp_path, "-m", "jaxpipe", "topo", "list").returncode == 0


def test_all_dependencies_are_looked_for():
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    named = {re.split(r"[<>=!~\[]", need)[0] for need in needs}
    assert {*NEEDED} == named | {"jaxlib"}


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
        for package in ("jaxpipe", "topo", "models")  # `rglob` follows no links
        for path in (ROOT / package).rglob("*.py")
        for option in started.findall(path.read_text())
    ]
    assert len(found) >= 8
    # `-I` has `-P` in it.
    assert [each for each in found if each[1] not in ("-P", "-I")] == []
