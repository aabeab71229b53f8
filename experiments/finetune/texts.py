"""The texts of the experiment: CPython's library, and documentation from Debian's packages."""

import gzip
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_DEADLINE_S = 120.0
_SKIPPED = ("site-packages", "test", "tests", "idle_test")


def write_texts(cases: Mapping[str, Any], folder: Path) -> Mapping[str, Path]:
    """Write one file for each language, and return the files by language.

    Files that are there already are kept.

    Raises:
        FileNotFoundError: the packages cannot be fetched without `apt-get` and `dpkg-deb`.
        subprocess.SubprocessError: a package is not there, or takes too long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {language: folder / f"{language}.txt" for language in cases}
    for language, file in files.items():
        if file.exists():
            continue
        texts = list(_debian(**cases[language]))
        if language == "english":
            texts += library()
        partial = file.with_suffix(".partial")
        partial.write_text("\n".join(texts), encoding="utf-8")
        partial.rename(file)  # whole, or not there
    return files


def library() -> Iterator[str]:
    """Yield the sources of the standard library, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not set(_SKIPPED) & set(path.relative_to(root).parts):
            yield path.read_text(encoding="utf-8", errors="replace")


def _debian(packages: Sequence[str], ends: Sequence[str]) -> Iterator[str]:
    """Yield the compressed texts of packages, which are downloaded and unpacked, not installed."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FileNotFoundError(f"{tool} is missing: run this on Debian or Ubuntu")
    with TemporaryDirectory() as name:
        folder = Path(name)
        _run("apt-get", "--quiet=2", "download", *packages, folder=folder)
        for package in sorted(folder.glob("*.deb")):
            _run("dpkg-deb", "--extract", package.name, "all", folder=folder)
        for path in sorted(folder.joinpath("all").rglob("*.txt.gz")):
            if path.name.endswith(tuple(ends)):
                yield gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace")


def _run(*command: str, folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, timeout=_DEADLINE_S)
