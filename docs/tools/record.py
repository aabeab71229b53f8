"""Run the commands whose output the pages show, and keep it in `docs/recorded`.

`python -m docs.tools.record [NAME ...]` records all, or the named ones. `commands.toml` lists them.
A command with `repeats = true` prints the same each time: a test compares it with its record.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/recorded"
_EPOCHS = re.compile(r"^[\d,]+ steps of [\d,]+ samples = .* epochs of .*\n\n?", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A command, as it is typed in the root of the repository, and whether its output repeats."""

    command: tuple[str, ...]
    repeats: bool = True


def recorded() -> Mapping[str, Recorded]:
    """Return what is recorded, by the name of its file."""
    tree = tomllib.loads((FOLDER / "commands.toml").read_text())
    return msgspec.convert(tree, dict[str, Recorded])


def record(name: str) -> None:
    """Run one command and write what it prints."""
    command = recorded()[name].command
    (ROOT / "build").mkdir(exist_ok=True)
    text = output(command)
    (FOLDER / f"{name}.txt").write_text(text)


def output(command: Sequence[str]) -> str:
    """Return the standard output of a command; it must end with exit code 0.

    Lines on epochs are left out: they are there only where the data of a page have been prepared.
    """
    program, *arguments = command
    local = ROOT / ".venv/bin" / program
    words = [str(local) if local.exists() else program, *arguments]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return _EPOCHS.sub("", done.stdout)


if __name__ == "__main__":
    for asked in sys.argv[1:] or recorded():
        record(asked)
