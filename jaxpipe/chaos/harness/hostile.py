"""Hostile inputs besides configurations and clusters: what a stranger or a slip can leave on disk.

::

    checkpoint   a manifest with other values, sealed again; a pipe, a link, a folder as a shard
    plan         a plan file with a fault, as `mutations` makes them
    import       a GPT-2 with other sizes, values or files
    output       a path to write that is a file, a link to nowhere, too long, or below a file
    packages     modules of jaxpipe's names in the working directory

Each builder writes into a folder of its own.
"""

import copy
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import msgspec
import numpy as np

from jaxpipe import topo
from jaxpipe.chaos.harness.mutations import File, awkward_values, mutate
from jaxpipe.interchange import begin_run, our_names, shape_of, write_gpt2
from jaxpipe.models import GptConfig
from jaxpipe.plan import PlanConfig, default_plan, plan_text
from jaxpipe.runtime.checkpoint import StreamedTensor
from jaxpipe.runtime.storage.checksum import seal, unseal
from jaxpipe.schedule import ScheduleKind
from jaxpipe.topo.toml_text import parse_toml

_MODEL = GptConfig(num_layers=1, dim=4, num_heads=1, sequence=4, vocabulary=8)
_PLANNED = "laptop"
_MODULES = ("models", "topo", "jax", "optax", "msgspec", "numpy", "rich", "tyro")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """A command with a hostile input; one that is `harmless` has to do its work.

    `files` are outside: they must not change.
    """

    what: str
    arguments: tuple[str, ...]
    harmless: bool = False
    files: tuple[Path, ...] = field(default=())


Builder: TypeAlias = Callable[[Path, Random], Hostile]


def checkpoint(folder: Path, random: Random) -> Hostile:
    """Damage a checkpoint of a small model, and export it."""
    saved = _saved(folder / "run")
    damage = random.choice((_forge, _forge, _forge, _replace, _lead_outside))
    what = damage(saved, random)
    return Hostile(
        what=f"checkpoint: {what}",
        arguments=("export", str(folder / "run"), "--out", str(folder / "out")),
        files=(folder / "outside.safetensors",),
    )


def plan(folder: Path, random: Random) -> Hostile:
    """Change a plan file, and read its placement."""
    cluster = topo.load(_PLANNED)
    whole = default_plan(
        PlanConfig(
            cluster=_PLANNED,
            stages=2,
            replicas=2,
            microbatch=1,
            schedule=ScheduleKind.ONE_F_ONE_B,
        ),
        cluster,
        num_layers=4,
        batch=8,
        tied=True,
    )
    tree = parse_toml(plan_text(whole, cluster))
    broken = mutate(File(tree=tree, fields={"": tuple(tree)}), random)
    path = folder / "plan.toml"
    path.write_bytes(broken.data)
    words = ("topo", "hosts", _PLANNED, "--plan", str(path), "--out", str(folder / "out"))
    return Hostile(what=f"plan: {broken.what}", arguments=words)


def imported(folder: Path, random: Random) -> Hostile:
    """Change the files of a GPT-2, and import it."""
    source = folder / "gpt2"
    tensors = _tensors()
    write_gpt2(source, _MODEL, tensors)
    if random.random() < 0.5:
        path = source / "config.json"
        fields = json.loads(path.read_text())
        key, value = random.choice(sorted(fields)), random.choice(_json_values())
        path.write_text(json.dumps(fields | {key: value}))
        what = f"{key} is {value!r:.40}"
    else:
        what = _replace(source, random)
    words = ("import", str(source), "--out", str(folder / "run"))
    return Hostile(what=f"import: {what}", arguments=words)


def output(folder: Path, random: Random) -> Hostile:
    """Name a path that cannot be written, or only with care."""
    file, outside = folder / "file", folder / "outside.safetensors"
    for path in (file, outside):
        path.write_text("precious")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "dangling").symlink_to(folder / "nowhere" / "deep")
    below = ("file/below", "loop", "dangling", "x" * 300, "missing/file.png", "\udcff", ".")
    odd = random.choice([*(folder / name for name in below), Path("/dev/null/x"), Path("/proc/x")])
    command: Sequence[str] = random.choice(
        [
            ("topo", "hosts", _PLANNED, "--out", str(odd)),
            ("topo", "show", _PLANNED, "--picture", str(odd)),
            ("init", str(odd)),
            ("data", "prepare", "--out", str(odd)),
        ]
    )
    what = f"output: {' '.join(command[:2])} to {str(odd).removeprefix(str(folder))!r:.40}"
    return Hostile(what=what, arguments=tuple(command), files=(file, outside))


def packages(folder: Path, random: Random) -> Hostile:
    """Put modules of the names that jaxpipe imports into the working directory."""
    names = random.sample(_MODULES, 3)
    for name in names:
        path = folder / random.choice((f"{name}.py", f"{name}/__init__.py"))
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit('a module of the working directory was executed')\n")
    words = ("topo", "show", random.choice(topo.names()))
    what = f"working directory with {', '.join(names)}"
    return Hostile(what=what, arguments=words, harmless=True)


BUILDERS: tuple[Builder, ...] = (checkpoint, plan, imported, output, packages)


def _json_values() -> list[Any]:
    found = []
    for value in awkward_values():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):  # a date, NaN, infinity
            continue
        found.append(value)
    return found


def _saved(run: Path) -> Path:
    tensors = _tensors()
    model = msgspec.to_builtins(_MODEL)
    config = {"run": {"folder": "run"}, "data": {"folder": "data"}, "model": model}
    streamed = [StreamedTensor.of(name, each) for name, each in tensors.items()]
    return begin_run(run, streamed, {"config": config})


def _forge(folder: Path, random: Random) -> str:
    """Give one place of the manifest another value, and seal it."""
    path = folder / "manifest.json"
    tree = unseal(path.read_bytes(), version=1)
    places = list(_places(tree))
    holder, key = random.choice(places)
    holder[key] = copy.deepcopy(random.choice(_json_values()))
    path.write_bytes(seal(tree, version=1))
    return f"{key} in the manifest is {holder[key]!r:.40}"


def _places(tree: Any) -> "list[tuple[Any, Any]]":
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
    found = [(tree, key) for key in keys]
    inner = (tree[key] for key in keys if isinstance(tree[key], dict | list))
    return found + [place for each in inner for place in _places(each)]


def _replace(folder: Path, random: Random) -> str:
    """Replace a file by something else."""
    path = random.choice(sorted(path for path in folder.iterdir() if path.is_file()))
    content = path.read_bytes()
    path.unlink()
    kind = random.choice(("pipe", "link", "folder", "device", "part", "nothing"))
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/etc/hosts")
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "part":
            path.write_bytes(content[: random.randrange(len(content))])
    return f"{kind} in place of {path.name}"


def _lead_outside(folder: Path, random: Random) -> str:
    """Let the manifest name a file outside of its folder."""
    outside = folder.parents[2] / "outside.safetensors"
    shutil.copy(folder / "parameters.safetensors", outside)
    path = folder / "manifest.json"
    tree = unseal(path.read_bytes(), version=1)
    named = random.choice((str(outside), "../../../outside.safetensors", "./x", "a\0b"))
    for entry in tree["tensors"]:
        entry["file"] = named
    path.write_bytes(seal(tree, version=1))
    return f"the manifest names {named!r:.40}"


def _tensors() -> dict[str, np.ndarray]:
    return {name: np.full(shape_of(name, _MODEL), 0.5, np.float32) for name in our_names(_MODEL)}
