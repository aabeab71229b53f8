"""The mistakes that need no more than a command: what a user does wrong, and the answer."""

import json
from dataclasses import dataclass, field

from experiments.first_hour.sandbox import Ended, Sandbox

CONFIG = """
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

_PLAN = """
format = 1
cluster = "{cluster}"
schedule = "1f1b"
all_reduce = "hierarchical"
microbatch = 1
num_microbatches = 8
tied = true
cut = [2, 2]
placement = [[0, 1]]
sync = [0, 1]
sync_shared = [0, 1]
sync_all = [0, 1]
"""
_SPAN = {"rank": 0, "lane": "compute", "name": "forward", "start_s": 0.0, "end_s": 1.0}
_TRACE = {
    "otherData": {"producer": "jaxpipe", "truth": "measured", "rank_names": ["rank 0"]},
    "traceEvents": [{"ph": "X", "args": {**_SPAN, "step": 0, "stage": 0, "microbatch": 0}}],
}
_TEXTS = {
    "CONFIG": CONFIG,
    "OTHER_PLAN": _PLAN.format(cluster="two-region"),
    "LAPTOP_PLAN": _PLAN.format(cluster="laptop"),
    "DEEP_PLAN": f"cut = {'[' * 50_000}",
    "BRACKETS": "[" * 3_000,
    "TRACE": json.dumps(_TRACE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A mistake: settings of `train --check`, or another command, and files that it takes.

    In a text of `files`, `CONFIG` stands for the correct configuration; `_TEXTS` has others. Some
    are none: they `work`. The command is called in the folder `where`.
    """

    what: str
    before: str
    settings: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    works: bool = False
    where: str = "."


def prepare(box: Sandbox) -> None:
    """Write the correct configuration and its dataset, and check that both are."""
    box.write("config.toml", CONFIG)
    done = box.jaxpipe("data", "prepare", "--out", "data")
    assert done.code == 0, done.err
    done = box.jaxpipe("train", "config.toml", "--check")
    assert done.code == 0, done.err


def answer(box: Sandbox, mistake: Mistake) -> Ended:
    """Make a mistake in the folder that `prepare` has filled."""
    for name, text in mistake.files.items():
        for key, long_text in _TEXTS.items():
            text = text.replace(key, long_text)  # noqa: PLW2901  the same text, with less to do
        data = text.encode(mistake.encoding)
        (box.folder / name).write_bytes(data)
    changes = [word for setting in mistake.settings for word in ("--set", setting)]
    words = mistake.command or ["train", "config.toml", *changes, "--check"]
    folder = box.folder / mistake.where
    folder.mkdir(exist_ok=True)
    return Sandbox(folder, box.limit_s).jaxpipe(*words)


def holds(mistake: Mistake, ended: Ended) -> bool:
    """Return whether the answer is one line, or the work is done where there is no mistake."""
    return ended.code == 0 if mistake.works else ended.is_refusal
