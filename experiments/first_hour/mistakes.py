"""The mistakes of section 7 that need no long run: what a user does wrong, and the answer."""

from dataclasses import dataclass, field

from experiments.first_hour.sandbox import Ended, Sandbox

_CONFIG = """
[run]
folder = "run"
[data]
folder = "data"
[model]
preset = "tiny"
[plan]
cluster = "laptop"
stages = 2
replicas = 1
[train]
batch = 4
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A mistake: settings of `train --check`, or another command, and files that it takes.

    In a text of `files`, `CONFIG` stands for the correct configuration. Some are none: they
    `work`.
    """

    what: str
    before: str
    settings: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    works: bool = False


def prepare(box: Sandbox) -> None:
    """Write the correct configuration and its dataset, and check that both are."""
    box.write("config.toml", _CONFIG)
    done = box.jaxpipe("data", "prepare", "--out", "data")
    assert done.code == 0, done.err
    done = box.jaxpipe("train", "config.toml", "--check")
    assert done.code == 0, done.err


def answer(box: Sandbox, mistake: Mistake) -> Ended:
    """Make a mistake in the folder that `prepare` has filled."""
    for name, text in mistake.files.items():
        data = text.replace("CONFIG", _CONFIG).encode(mistake.encoding)
        (box.folder / name).write_bytes(data)
    changes = [word for setting in mistake.settings for word in ("--set", setting)]
    return box.jaxpipe(*(mistake.command or ["train", "config.toml", *changes, "--check"]))


def holds(mistake: Mistake, ended: Ended) -> bool:
    """Return whether the answer is one line, or the work is done where there is no mistake."""
    return ended.code == 0 if mistake.works else ended.is_refusal
