"""The Dockerfile: rules of hadolint that need no Docker, and its installation, run as a script."""

import re
import shutil
import subprocess
import sys
import venv
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments, lines joined."""
    lines = [line for line in TEXT.splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = [line.partition(" ") for line in joined.splitlines()]
    return [(word, " ".join(rest.split())) for word, _, rest in pairs]


def arguments(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def test_the_base_is_pinned():  # DL3006, DL3007
    (base,) = arguments("FROM")
    assert re.fullmatch(r"python:3\.1[123]\.\d+-slim-[a-z]+", base)


def test_nothing_is_left_of_caches():  # DL3009, DL3015, DL3042
    for command in arguments("RUN"):
        if "apt-get install" in command:
            assert "apt-get install --yes --no-install-recommends" in command
            assert "rm -rf /var/lib/apt/lists/*" in command
        if "pip install" in command:
            assert "--no-cache-dir" in command


def test_versions_of_packages_are_constrained():  # DL3013
    installs = [command for command in arguments("RUN") if "pip install" in command]
    assert installs
    assert all("--constraint constraints.txt" in command for command in installs)


def test_the_last_user_is_not_root():  # DL3002
    assert arguments("USER")[-1] == "jaxpipe"


def test_folders_are_absolute_and_no_command_changes_them():  # DL3000, DL3003
    assert all(folder.startswith("/") for folder in arguments("WORKDIR"))
    assert not any(re.search(r"(^|&& )cd ", command) for command in arguments("RUN"))


def test_the_command_needs_no_shell():  # DL3025
    assert all(command.startswith("[") for command in arguments("CMD"))


def test_nothing_is_added_from_elsewhere():  # DL3020, DL4001
    assert not arguments("ADD")
    assert not re.search(r"curl|wget|latest", TEXT)


def left_out(folder: str, names: list[str]) -> list[str]:
    """Return what Docker does not copy: `**/` is of any folder, other patterns of the first."""
    patterns = (ROOT / ".dockerignore").read_text().split()
    anywhere = [pattern.removeprefix("**/") for pattern in patterns if pattern.startswith("**/")]
    applied = patterns + anywhere if Path(folder) == ROOT else anywhere
    return [name for name in names if any(fnmatch(name, pattern) for pattern in applied)]


@pytest.mark.deep
def test_its_installation_works_in_a_clean_environment(tmp_path: Path):
    """It downloads some hundred megabytes from the package index."""
    (command,) = (run for run in arguments("RUN") if "pip install" in run)
    source = tmp_path / "src"
    shutil.copytree(ROOT, source, symlinks=True, ignore=left_out)
    venv.create(tmp_path / "python", with_pip=True)
    default = dict(argument.split("=") for argument in arguments("ARG"))
    # Nothing of this environment but where packages come from: pip reads that from its own files.
    environment = {"PATH": f"{tmp_path}/python/bin:/usr/bin:/bin", "HOME": str(tmp_path), **default}
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500.0,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "jaxpipe " in done.stdout
    assert "Open MPI" in done.stdout
    assert sys.prefix not in done.stdout
