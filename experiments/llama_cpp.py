"""The sources of llama.cpp, with its converters, from llama-cpp-python's source distribution."""

import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
DEADLINE_S = 1800.0


def sources(place: Path) -> Path:
    """Download the sources from PyPI into `place`, and return their folder; once there, they stay.

    Raises:
        subprocess.SubprocessError: they cannot be downloaded.
    """
    unpacked = place / "llama_cpp"
    if not unpacked.exists():
        words = ("download", PACKAGE, "--no-deps", "--no-binary", ":all:", "--quiet", "--dest")
        command = [sys.executable, "-m", "pip", *words, str(place)]
        subprocess.run(command, check=True, timeout=DEADLINE_S)
        (archive,) = place.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(unpacked, filter="data")
    (vendored,) = unpacked.glob("*/vendor/llama.cpp")
    return vendored
