"""Fuzz user input: wrong configurations, clusters, plans, checkpoints, imports, paths, folders.

Each input goes to a process of its own. Wrong ones must end within two seconds with exit code 2 and
one line on standard error; none may end with a traceback, be killed or hang. The two seconds are
processor time, which equals wall-clock time on an idle core (a refusal waits for nothing);
`refused_s` is the wall-clock time on the machine as it was.
"""

import dataclasses
import os
import resource
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from threading import Timer

from jaxpipe import topo
from jaxpipe.chaos.harness.hostile import BUILDERS, Builder
from jaxpipe.chaos.harness.mutations import Broken, File, mutate, odd_paths
from jaxpipe.chaos.harness.tiny_run import tree
from jaxpipe.chaos.harness.trial import Family, Setup, Trial
from jaxpipe.config import Config
from jaxpipe.models import GptConfig
from jaxpipe.topo.cluster_file import ClusterFile, HostGroup, Pairs, RegionLink, Speed

_REFUSED_WITHIN_S = 2.0
_ENDS_WITHIN_S = 60.0
_MEMORY_BYTES = 6 * 2**30  # of address space, of which a process maps far more than it uses
_NUM_AT_ONCE = 2
_ODD_PATHS = 0.04
_LONG = 2000
"""Characters of a line that people still read."""
_FILE = "FILE"
_COMMANDS: tuple[tuple[str, ...], ...] = (
    *(("train", _FILE, "--check"),) * 3,  # a valid one would train for long
    ("topo", "show", _FILE),
    ("published", "simulate", "--system", "jaxpipe", "--cluster", _FILE, "--batch", "64"),
    ("plan", "--cluster", _FILE, "--model", "tiny", "--batch", "8", "--budget", "0.2"),
)
"""Configurations and cluster files in equal numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A command, and the fault in its file.

    It runs in `folder`, must do its work if it is `harmless`, and leaves files `outside` alone.
    """

    name: str
    arguments: tuple[str, ...]
    surely_wrong: bool
    folder: Path | None = None
    harmless: bool = False
    outside: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a command ended: exit code, processor time and wall-clock time.

    `code` is None if it did not end.
    """

    code: int | None
    cpu_s: float
    seconds: float
    err: str


def _trials(setup: Setup) -> Iterator[Trial]:
    """Run the commands, two at a time."""
    fuzzer = _Fuzzer(setup)
    with ThreadPoolExecutor(_NUM_AT_ONCE) as executor:
        try:
            seeds = range(setup.seed, setup.seed + setup.num_trials)
            yield from executor.map(fuzzer.trial, seeds)
        finally:
            executor.shutdown(cancel_futures=True)


class _Fuzzer:
    """The valid files, and the folder of the wrong ones."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._folder = setup.folder / "files"
        self._folder.mkdir()
        self._configs = (_config(setup),)
        self._clusters = tuple(_cluster(name) for name in topo.names())
        self._paths = odd_paths(self._folder)
        data = resources.files("jaxpipe.topo") / "data"
        for file in data.iterdir():
            if file.name.endswith(".csv"):  # cluster files name them
                (self._folder / file.name).write_bytes(file.read_bytes())

    def trial(self, number: int) -> Trial:
        """Run the trial with this seed."""
        hostile = number % (len(_COMMANDS) + len(BUILDERS)) - len(_COMMANDS)
        given = self._input(number) if hostile < 0 else self._hostile(BUILDERS[hostile], number)
        before = [each.read_bytes() for each in given.outside if each.exists()]
        errors = self._setup.folder / f"{number}.err"
        ending = _run(given, errors)
        why = judge(ending, surely_wrong=given.surely_wrong)
        if given.harmless and ending.code != 0:
            why = f"exit code {ending.code}: {ending.err[-200:]}"
        if [each.read_bytes() for each in given.outside if each.exists()] != before:
            why = "it changed a file outside of its folder"
        figures = {}
        if ending.code == 2:
            figures = {"refused_cpu_s": ending.cpu_s, "refused_s": ending.seconds}
        if not why:
            errors.unlink()
            (self._folder / f"{number}.toml").unlink(missing_ok=True)
            shutil.rmtree(self._folder / f"{number}", ignore_errors=True)
        return Trial(name=given.name, passed=not why, why=why, figures=figures)

    def _hostile(self, build: Builder, number: int) -> Input:
        folder = self._folder / f"{number}"
        folder.mkdir()
        hostile = build(folder, Random(number))
        return Input(
            name=hostile.what,
            arguments=hostile.arguments,
            surely_wrong=False,
            folder=folder,
            harmless=hostile.harmless,
            outside=hostile.files,
        )

    def _input(self, number: int) -> Input:
        # The number decides everything: a failed trial can be repeated alone.
        random = Random(number)
        command = _COMMANDS[number % len(_COMMANDS)]
        if random.random() < _ODD_PATHS:
            path, what, surely_wrong = random.choice(self._paths), "odd path", True
        else:
            file = random.choice(self._configs if command[0] == "train" else self._clusters)
            broken = mutate(file, random)
            path, what = self._write(broken, number), broken.what
            surely_wrong = broken.surely_wrong
        arguments = tuple(path if each == _FILE else each for each in command)
        # A valid file is planned: not into a `plan.toml` of the working folder.
        if command[0] == "plan":
            arguments += ("--out", str(self._folder / f"plan-{number}.toml"))
        return Input(name=f"{command[0]}: {what}", arguments=arguments, surely_wrong=surely_wrong)

    def _write(self, broken: Broken, number: int) -> str:
        path = self._folder / f"{number}.toml"
        path.write_bytes(broken.data)
        return str(path)


def judge(ending: Ending, *, surely_wrong: bool) -> str:
    r"""Return what is wrong with how a command ended; empty if nothing is.

    >>> judge(Ending(code=2, cpu_s=0.4, seconds=0.5, err="jaxpipe: no\n"), surely_wrong=True)
    ''
    >>> judge(Ending(code=0, cpu_s=0.4, seconds=0.5, err=""), surely_wrong=True)
    'exit code 0: it was not refused'
    """
    if ending.code is None:
        return f"it does not end within {_ENDS_WITHIN_S:g} s"
    if "Traceback" in ending.err:
        return f"traceback: {ending.err.splitlines()[-1]:.200}"
    if ending.code == 0:
        return "exit code 0: it was not refused" if surely_wrong else ""
    return _judge_refusal(ending)


def _judge_refusal(ending: Ending) -> str:
    lines = ending.err.splitlines()
    if ending.code != 2:
        return f"exit code {ending.code}: {ending.err[-200:]}"
    if len(lines) != 1 or not lines[0].startswith("jaxpipe: ") or len(lines[0]) > _LONG:
        return f"not one readable line, but {len(lines)}: {ending.err:.200}"
    if ending.cpu_s > _REFUSED_WITHIN_S:
        return f"refused after {ending.cpu_s:.1f} s of a processor"
    return ""


def _run(given: Input, errors: Path) -> Ending:
    command = [sys.executable, "-P", "-m", "jaxpipe", *given.arguments]
    begin_s = time.perf_counter()
    # A file and not a pipe, which would block a long traceback that nobody reads.
    with errors.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=given.folder or errors.parent,  # relative paths in mutated files end there
            stdout=subprocess.DEVNULL,
            stderr=file,
            preexec_fn=_limit_memory,  # noqa: PLW1509  it only calls setrlimit
        )
    too_long = Timer(_ENDS_WITHIN_S, process.kill)
    too_long.start()
    # Of all waits, this alone returns the processor time of one child; but it has no timeout.
    _, status, usage = os.wait4(process.pid, 0)
    has_ended = too_long.is_alive()  # before `cancel`: it has not fired
    too_long.cancel()
    # The process is reaped: `Popen` must not wait for its number, which may be used again.
    process.returncode = os.waitstatus_to_exitcode(status)
    return Ending(
        code=process.returncode if has_ended else None,
        cpu_s=usage.ru_utime + usage.ru_stime,
        seconds=time.perf_counter() - begin_s,
        err=errors.read_text(errors="replace"),
    )


def _limit_memory() -> None:
    """Let a command that allocates too much fail, instead of the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def _config(setup: Setup) -> File:
    sections = {field.name: field.type for field in dataclasses.fields(Config)}
    sections["model"] = GptConfig
    fields = {name: _names(section) for name, section in sections.items()}
    return File(tree=dict(tree(setup.folder / "run", setup.dataset)), fields=fields)


def _cluster(name: str) -> File:
    text = (resources.files("jaxpipe.topo") / "data" / f"{name}.toml").read_text()
    sections: Mapping[str, type] = {
        "": ClusterFile,
        "hosts": HostGroup,
        "links": RegionLink,
        "inside_region": Speed,
        "across_regions": Speed,
        "inside_host": Speed,
        "pairs": Pairs,
    }
    fields = {section: _names(kind) for section, kind in sections.items()}
    return File(tree=tomllib.loads(text), fields=fields)


def _names(section: object) -> Sequence[str]:
    assert dataclasses.is_dataclass(section), section
    return [field.name for field in dataclasses.fields(section)]


FUZZ = Family(
    name="fuzz",
    does="wrong configurations, clusters, plans, checkpoints, imports, output paths and modules in "
    "the working directory, to nine commands",
    aim="no traceback; exit code 2 and one line within 2 s (processor time) for a wrong input",
    num_trials=60,
    num_trials_full=2000,
    trials=_trials,
)
