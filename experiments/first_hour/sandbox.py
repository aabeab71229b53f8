"""A folder in which the installed `jaxpipe` is called, as by a user, with files of a stranger."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jaxpipe.runtime.storage.checksum import seal, unseal

JAXPIPE = Path(sys.executable).with_name("jaxpipe")
MARKER = "EXECUTED"
"""The file that a successful attack leaves."""
SECRET = "root:$6$salty:19000:0:99999:7:::"
_READABLE = 1600
"""Characters of a line, and no more than one line, that a user still reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended; `code` is None if it had to be killed, after these seconds."""

    code: int | None
    seconds: float
    out: str
    err: str

    @property
    def is_refusal(self) -> bool:
        """Whether it ended with exit code 2 and one readable line."""
        lines = self.err.splitlines()
        return self.code == 2 and len(lines) == 1 and len(lines[0]) < _READABLE

    def __str__(self) -> str:
        """Say it in a few words."""
        if self.code is None:
            return f"no end within {self.seconds:.0f} s"
        if self.is_refusal:
            return f"refused: {self.err.strip().removeprefix('jaxpipe: ')}"
        if self.code == 0:
            return "exit code 0"
        return f"exit code {self.code}, {len(self.err.splitlines())} lines of errors"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A folder of its own for one attack or mistake; a command ends within `limit_s`.

    The run that `checkpoint` begins is a copy of `imported`, if that is given.
    """

    folder: Path
    limit_s: float = 60.0
    imported: Path | None = None

    def jaxpipe(self, *words: str | Path) -> Ended:
        """Call the command in the folder."""
        return self.run(str(JAXPIPE), *map(str, words))

    def run(self, *command: str) -> Ended:
        """Run a command in the folder."""
        begin_s = time.perf_counter()
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=os.environ | {"COLUMNS": "100"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            try:
                out, err = process.communicate(timeout=self.limit_s)
                code = process.returncode
            except subprocess.TimeoutExpired:
                process.kill()
                (out, err), code = process.communicate(), None
        return Ended(code=code, seconds=time.perf_counter() - begin_s, out=out, err=err)

    @property
    def is_executed(self) -> bool:
        """Whether an attack has run code: its marker is somewhere in or above the folder."""
        return any(self.folder.parent.rglob(MARKER)) or Path(f"/{MARKER}").exists()

    def write(self, name: str, text: str) -> Path:
        """Write a file into the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def cluster(self, *, name: str = "c", host: str = "a", more: str = "") -> Path:
        """Write a cluster of two hosts, one of them with this name."""
        text = (
            f"name = {json.dumps(name)}\n"
            f'[[hosts]]\nregion = "here"\nname = {json.dumps(host)}\n{more}\n'
            '[[hosts]]\nregion = "here"\nname = "b"\n'
            "[inside_region]\nlatency_ms = 1\nbandwidth_gbps = 1\n"
        )
        return self.write("cluster.toml", text)

    def config(self, *, cluster: Path | str, run: str = "run") -> Path:
        """Write a configuration of two stages on a cluster."""
        text = (
            f"[run]\nfolder = {json.dumps(run)}\n[data]\nfolder = 'data'\n"
            "[model]\npreset = 'tiny'\n[train]\nbatch = 4\n"
            f"[plan]\ncluster = {json.dumps(str(cluster))}\nstages = 2\nreplicas = 1\n"
        )
        return self.write("config.toml", text)

    def gpt2(self, *, weight: float = 0.5, **fields: Any) -> Path:
        """Write a GPT-2 of one layer as `save_pretrained` does, with other fields and a weight."""
        folder = self.folder / "gpt2"
        folder.mkdir()
        sizes = {"n_layer": 1, "n_embd": 4, "n_head": 1, "n_positions": 4, "vocab_size": 8}
        block = {"ln_1": (4,), "ln_2": (4,)}
        kernels = {"attn.c_attn": (4, 12), "attn.c_proj": (4, 4), "mlp.c_fc": (4, 16)}
        kernels["mlp.c_proj"] = (16, 4)
        shapes = {
            "wte.weight": (8, 4),
            "wpe.weight": (4, 4),
            "ln_f.weight": (4,),
            "ln_f.bias": (4,),
        }
        for name, shape in (block | kernels).items():
            shapes |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[-1:]}
        tensors = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
        tensors["wte.weight"][3, 2] = weight
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes, **fields}))
        return folder

    def checkpoint(self) -> Path:
        """Begin a run with that GPT-2, and return the folder of its checkpoint."""
        if self.imported is None:
            done = self.jaxpipe("import", self.gpt2(), "--out", "run")
            assert done.code == 0, done.err
        else:
            shutil.copytree(self.imported, self.folder / "run")
        return next((self.folder / "run" / "checkpoints").iterdir())

    def forge(self, checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change a manifest, and seal it again."""
        path = checkpoint / "manifest.json"
        tree = unseal(path.read_bytes(), version=1)
        change(tree)
        path.write_bytes(seal(tree, version=1))

    def touching(self) -> str:
        """Return a command of a shell that leaves the marker."""
        return f"touch {shlex.quote(str(self.folder / MARKER))}"
