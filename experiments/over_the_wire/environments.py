"""A Python of its own for each peer: a virtual environment with packages of PyPI."""

import subprocess
import sys
import tomllib
from pathlib import Path

_FILE = Path(__file__).parent / "environments.toml"
_TIMEOUT_S = 3600.0
_READY = "over-the-wire.txt"


def python_of(name: str, folder: Path) -> Path:
    """Return the Python of an environment in a folder; make it if it is not there.

    It is made again where `environments.toml` has changed.

    Raises:
        subprocess.SubprocessError: pip failed, or took too long.
    """
    packages = tomllib.loads(_FILE.read_text())[name]
    home = folder.absolute() / name
    python, ready = home / "bin" / "python", home / _READY
    wanted = "\n".join(packages)
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {', '.join(packages)} in {home}", flush=True)
        _run(sys.executable, "-m", "venv", "--clear", str(home))
        _run(str(python), "-m", "pip", "install", "--quiet", *packages)
        ready.write_text(wanted)
    return python


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=_TIMEOUT_S)
