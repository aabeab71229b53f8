"""Record a terminal session of a newcomer in `docs/recorded/newcomer.txt`.

`python -m docs.tools.session` types the commands of `newcomer.toml` into one shell, in an empty
folder and with empty caches, and keeps what each prints and how long it takes. It clones the last
commit of this repository, installs it, and trains: that takes minutes and 1.3 GB of disk, and `pip`
has to reach an index. A command that fails ends the recording.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Timer

ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / "docs/recorded/newcomer.toml"
TRANSCRIPT = ROOT / "docs/recorded/newcomer.txt"
_REPOSITORY = "REPOSITORY"
_LONGEST_S = 1800.0
_OF_PIP = re.compile(r"^WARNING: Location '[^']*' is ignored.*\n", re.MULTILINE)
"""What `pip` says of the indexes that a machine configures for it."""
_END = "end of command, exit code"


def commands() -> tuple[str, ...]:
    """Return the commands of the session."""
    return tuple(tomllib.loads(COMMANDS.read_text())["commands"])


def transcript(folder: Path, *, repository: Path, typed: Sequence[str]) -> str:
    """Return what a shell in the folder shows, with the seconds of each command.

    Raises:
        RuntimeError: a command failed, or took longer than half an hour.
    """
    begin_s = time.monotonic()
    parts = []
    with subprocess.Popen(
        ["bash", "--noprofile", "--norc"],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as shell:
        for command in typed:
            command_s = time.monotonic()
            lines = list(_run(shell, command.replace(_REPOSITORY, str(repository))))
            spent_s = time.monotonic() - command_s
            time_of = f"    # {spent_s:.0f} s" if spent_s >= 1 else ""
            parts.append("\n".join([f"$ {command}{time_of}", *lines]))
    load = f"on {os.cpu_count()} cores with a load of {os.getloadavg()[1]:.0f}"
    parts.append(f"# {time.monotonic() - begin_s:.0f} s in all (measured {load})")
    return cleaned("\n".join(parts) + "\n", folder=folder, repository=repository)


def _run(shell: "subprocess.Popen[str]", command: str) -> Iterator[str]:
    """Yield the lines that a command prints in the shell."""
    assert shell.stdin is not None, shell
    assert shell.stdout is not None, shell
    # Commands read no input: it is that of the shell.
    shell.stdin.write(f"{command} < /dev/null\nprintf '\\n%s %d\\n' '{_END}' $?\n")
    shell.stdin.flush()
    late = Timer(_LONGEST_S, shell.kill)
    late.start()
    try:
        for line in shell.stdout:
            if line.startswith(_END):
                if (code := int(line.removeprefix(_END))) != 0:
                    raise RuntimeError(f"`{command}` ended with exit code {code}")
                return
            yield line.rstrip("\n")
    finally:
        late.cancel()
    raise RuntimeError(f"`{command}` took longer than {_LONGEST_S:.0f} s, or ended the shell")


def cleaned(text: str, *, folder: Path, repository: Path) -> str:
    r"""Return a transcript without the places of its machine, and without blank lines at its end.

    >>> text = "$ git clone REPOSITORY a\nCloning from /r/jaxpipe into /x/a\n\n\n$ ls\n"
    >>> print(cleaned(text, folder=Path("/x"), repository=Path("/r/jaxpipe")), end="")
    $ git clone REPOSITORY a
    Cloning from REPOSITORY into a
    <BLANKLINE>
    $ ls
    """
    text = _OF_PIP.sub("", text)
    text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    text = text.replace(str(repository), _REPOSITORY)
    return re.sub(r"\n{3,}", "\n\n", text)


def _environment(folder: Path) -> Mapping[str, str]:
    """Return the environment of a newcomer: no caches, no settings of this project's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith("JAX")
    }
    return {**kept, "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "100"}


def main() -> None:
    """Record the session of the last commit."""
    with tempfile.TemporaryDirectory() as folder:
        TRANSCRIPT.write_text(transcript(Path(folder), repository=ROOT, typed=commands()))


if __name__ == "__main__":
    sys.exit(main())
