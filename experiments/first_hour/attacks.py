"""The attacks of section 9: files of a stranger, and what each command makes of them.

Each attack gets a folder of its own and returns how the command ended. One has succeeded if code of
the stranger was executed, a file was written outside, a command did not end, or it did not end as
it should: with one line, or, if `is_harmless`, with its work done.
"""

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.first_hour.sandbox import MARKER, SECRET, Ended, Sandbox

_SHARD, _MANIFEST = "parameters.safetensors", "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack, what it did in the first trial, and how to repeat it."""

    what: str
    before: str
    run: Callable[[Sandbox], Ended]
    is_harmless: bool = False


def name_of_a_cluster(box: Sandbox) -> Ended:
    """Put a command behind a newline in the name of a cluster."""
    cluster = box.cluster(name=f"ev\n{box.touching()}")
    return box.jaxpipe("emulate", cluster, "--engine", "htb", "--", "true")


def name_of_a_host(target: str) -> Callable[[Sandbox], Ended]:
    """Put a command behind the end of a list of hosts, in the name of one."""

    def run(box: Sandbox) -> Ended:
        cluster = box.cluster(host=f"a\nHOSTS\n{box.touching()}\ncat <<'HOSTS'\nz")
        config = box.config(cluster=cluster)
        return _executed(box, box.jaxpipe("launch", config, "--target", target))

    return run


def option_of_launch(*words: str, run: str = "run") -> Callable[[Sandbox], Ended]:
    """Put a command behind a newline in an option, or in the folder of the run."""

    def attack(box: Sandbox) -> Ended:
        config = box.config(cluster="laptop", run=run.replace("F", box.touching()))
        given = [word.replace("F", box.touching()) for word in words]
        return _executed(box, box.jaxpipe("launch", config, *given))

    return attack


def _executed(box: Sandbox, done: Ended) -> Ended:
    """Run the script that was printed, if any, with stand-ins that end at once."""
    if done.code == 0:
        (box.folder / "bin").mkdir()
        for name in ("mpirun", "srun", "sbatch", "jaxpipe", "scontrol"):
            box.write(f"bin/{name}", "#!/bin/sh\n").chmod(0o755)
        script = box.write("job.sh", done.out)
        path = f"{box.folder / 'bin'}:{os.environ['PATH']}"
        box.run("env", f"PATH={path}", "bash", str(script))
    return done


def path_of_a_host(box: Sandbox) -> Ended:
    """Name a host as a path out of the folder to write."""
    cluster = box.cluster(host=f"../{MARKER}")
    addresses = box.write("addresses", f"../{MARKER} 10.0.0.1\nb 10.0.0.2\n")
    words = ("--device", "eth0", "--addresses", addresses, "--out", "tc")
    done = box.jaxpipe("topo", "tc", cluster, *words)
    for left in box.folder.rglob(f"{MARKER}.*"):
        left.rename(box.folder / MARKER)
    return done


def modules_in_the_working_directory(box: Sandbox) -> Ended:
    """Put packages of jaxpipe's names into the working directory, and start ranks there."""
    for module in ("optax.py", "msgspec.py", "jax/__init__.py", "models/__init__.py", "topo.py"):
        box.write(module, f"open({str(box.folder / MARKER)!r}, 'w')\n")
    return box.jaxpipe("doctor")


def escapes(box: Sandbox) -> Ended:
    """Put an escape sequence into the name of a host."""
    return box.jaxpipe("topo", "show", box.cluster(host="a\x1b[2Jb"))


def manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Sandbox], Ended]:
    """Change the manifest of a checkpoint, seal it again, and export it."""

    def run(box: Sandbox) -> Ended:
        box.forge(box.checkpoint(), change)
        return box.jaxpipe("export", "run", "--out", "out")

    return run


def path_in_a_manifest(box: Sandbox) -> Ended:
    """Let the manifest name a file outside of its folder."""
    checkpoint = box.checkpoint()
    (checkpoint / "parameters.safetensors").rename(box.folder / "outside.safetensors")

    def change(tree: dict[str, Any]) -> None:
        for entry in tree["tensors"]:
            if entry["file"] == "parameters.safetensors":
                entry["file"] = "../../../outside.safetensors"

    box.forge(checkpoint, change)
    return box.jaxpipe("export", "run", "--out", "out")


def pipe_in_a_checkpoint(box: Sandbox) -> Ended:
    """Put a pipe into the place of a file of tensors."""
    shard = box.checkpoint() / "parameters.safetensors"
    shard.unlink()
    os.mkfifo(shard)
    return box.jaxpipe("export", "run", "--out", "out")


def link_in_a_checkpoint(box: Sandbox) -> Ended:
    """Put a link to a secret into the place of a file of tensors."""
    shard = box.checkpoint() / "parameters.safetensors"
    shard.unlink()
    shard.symlink_to(box.write("shadow", SECRET))
    return _silent(box.jaxpipe("export", "run", "--out", "out"))


def damage(change: Callable[[Path], Any], name: str) -> Callable[[Sandbox], Ended]:
    """Change a file of a checkpoint in place, and export it."""

    def run(box: Sandbox) -> Ended:
        change(box.checkpoint() / name)
        return box.jaxpipe("export", "run", "--out", "out")

    return run


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _lie_about_sizes(path: Path) -> None:
    """Let the header of safetensors claim a tensor of 8 TiB."""
    header = {"a": {"dtype": "F32", "shape": [2**41], "data_offsets": [0, 2**43]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def _nest(path: Path) -> None:
    path.write_text("[" * 50_000)


def _grow(path: Path) -> None:
    """Make a file of 3 GiB that takes no disk."""
    with path.open("r+b") as file:
        file.truncate(3 * 2**30)


def objects(box: Sandbox) -> Ended:
    """Give a matrix of Python objects, which only a pickle can hold."""
    np.save(box.folder / "m.npy", np.array([[print]], object), allow_pickle=True)
    pairs = "[pairs]\nlatency_s = 'm.npy'\nbandwidth_bytes_per_s = 'm.npy'\n"
    return box.jaxpipe("topo", "show", box.write("c.toml", f"name = 'c'\n[[hosts]]\n{pairs}"))


def _model(**fields: Any) -> Callable[[Sandbox], Ended]:
    return manifest(lambda tree: tree["metadata"]["config"]["model"].update(fields))


def matrix(box: Sandbox) -> Ended:
    """Let the header of a matrix claim 29 TiB."""
    header = io.BytesIO()
    claim = {"shape": (2**21, 2**21 - 2**18), "fortran_order": False, "descr": "<f8"}
    np.lib.format.write_array_header_1_0(header, claim)
    (box.folder / "m.npy").write_bytes(header.getvalue())
    pairs = "[pairs]\nlatency_s = 'm.npy'\nbandwidth_bytes_per_s = 'm.npy'\n"
    return box.jaxpipe("topo", "show", box.write("c.toml", f"name = 'c'\n[[hosts]]\n{pairs}"))


def hostfile(box: Sandbox) -> Ended:
    """Name a secret as the hostfile of a cluster."""
    secret = box.write("shadow", SECRET)
    hosts = f"[[hosts]]\nhostfile = '{secret}'\n[inside_region]\n"
    text = f"name = 'c'\n{hosts}latency_ms = 1\nbandwidth_gbps = 1\n"
    return _silent(box.jaxpipe("topo", "show", box.write("c.toml", text)))


def _silent(done: Ended) -> Ended:
    """Return how a command ended; None as its exit code if it printed the secret."""
    if "salty" in done.out + done.err:
        return Ended(code=1, seconds=done.seconds, out="", err="it printed the secret\n")
    return done


def formula(box: Sandbox) -> Ended:
    """Put half a formula into the name of a rank in a trace, and draw it."""
    return box.jaxpipe("trace", write_trace(box, rank_name="$\\frac{$"), "--png", "trace.png")


def write_trace(box: Sandbox, *, rank_name: str) -> Path:
    """Write a trace of one instruction."""
    span = {"rank": 0, "lane": "compute", "name": "forward", "start_s": 0.0, "end_s": 1.0}
    event = {"ph": "X", "args": span | {"step": 0, "stage": 0, "microbatch": 0}}
    other = {"producer": "jaxpipe", "truth": "measured", "rank_names": [rank_name]}
    return box.write("trace.json", json.dumps({"otherData": other, "traceEvents": [event]}))


def weights(value: float) -> Callable[[Sandbox], Ended]:
    """Import weights of which one is no number."""
    return lambda box: box.jaxpipe("import", box.gpt2(weight=value), "--out", "run")


def layers_of_an_import(box: Sandbox) -> Ended:
    """Import a GPT-2 of a billion layers."""
    return box.jaxpipe("import", box.gpt2(n_layer=10**9), "--out", "run")


def index_of_an_import(box: Sandbox) -> Ended:
    """Import a GPT-2 whose index names a file outside of its folder."""
    folder = box.gpt2()
    index = {"weight_map": {"wte.weight": "../../shadow"}}
    (folder / "model.safetensors").unlink()  # it would count in place of the index
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return box.jaxpipe("import", folder, "--out", "run")


def microbatches(box: Sandbox) -> Ended:
    """Give a plan of a hundred million microbatches."""
    head = "format = 1\ncluster = 'laptop'\nschedule = '1f1b'\nmicrobatch = 1\n"
    rest = "num_microbatches = 100000000\ntied = false\ncut = [1, 1]\nplacement = [[0, 1]]\n"
    trees = "sync = [0, 1]\nsync_shared = [0, 1]\nsync_all = [0, 1]\n"
    plan = box.write("p.toml", head + rest + trees)
    return box.jaxpipe("topo", "hosts", "laptop", "--plan", plan)


ATTACKS = (
    Attack(
        what="a newline and a command in the name of a cluster, `emulate --engine htb`",
        before="executed by root",
        run=name_of_a_cluster,
    ),
    *(
        Attack(
            what=f"a newline and a command in the name of a host, `launch --target {target}`",
            before="executed",
            run=name_of_a_host(target),
        )
        for target in ("mpirun", "slurm")
    ),
    Attack(
        what="`launch --time` with a newline",
        before="line injected",
        run=option_of_launch("--target", "slurm", "--time", "1:00\nF"),
    ),
    Attack(
        what="`launch --image` with a newline",
        before="line injected",
        run=option_of_launch("--target", "mpijob", "--image", "a\nF"),
    ),
    Attack(
        what="`run.folder` with a newline, `launch --target mpijob`",
        before="YAML broken",
        run=option_of_launch("--target", "mpijob", run="a\nF"),
    ),
    Attack(
        what="a host called `../x`, `topo tc`",
        before="wrote outside `--out`",
        run=path_of_a_host,
    ),
    Attack(
        what="`optax.py`, `models/`, `topo` in the working directory, ranks started",
        before="executed by every rank",
        run=modules_in_the_working_directory,
        is_harmless=True,
    ),
    Attack(what="escapes in the name of a host", before="printed raw", run=escapes),
    Attack(what="manifest with `../../../x`, resealed", before="followed", run=path_in_a_manifest),
    Attack(what="a shard is a pipe", before="hang", run=pipe_in_a_checkpoint),
    Attack(what="a shard is a link to a secret", before="refused", run=link_in_a_checkpoint),
    Attack(
        what="manifest without `config`",
        before="traceback: KeyError",
        run=manifest(lambda tree: tree["metadata"].pop("config")),
    ),
    Attack(
        what="manifest with `config: [1, 2]`",
        before="traceback: TypeError",
        run=manifest(lambda tree: tree["metadata"].update(config=[1, 2])),
    ),
    Attack(what="10^9 layers in a manifest", before="MemoryError", run=_model(num_layers=10**9)),
    Attack(
        what="a vocabulary of 10^12 in a manifest",
        before="MemoryError after 20 s",
        run=_model(vocabulary=10**12),
    ),
    Attack(
        what="a sequence of 10^12 in a manifest",
        before="MemoryError after 20 s",
        run=_model(sequence=10**12),
    ),
    Attack(what="a shard is cut off", before="refused", run=damage(_truncate, _SHARD)),
    Attack(what="a shard claims 8 TiB", before="refused", run=damage(_lie_about_sizes, _SHARD)),
    Attack(what="a manifest is cut off", before="refused", run=damage(_truncate, _MANIFEST)),
    Attack(what="a manifest of 50,000 lists", before="refused", run=damage(_nest, _MANIFEST)),
    Attack(what="a manifest of 3 GiB", before="refused", run=damage(_grow, _MANIFEST)),
    Attack(what="a matrix of Python objects in a cluster", before="refused", run=objects),
    Attack(what="a matrix of 29 TiB in a cluster", before="traceback: MemoryError", run=matrix),
    Attack(what="`hostfile` is a secret", before="its first line printed", run=hostfile),
    Attack(
        what="`$\\frac{$` in the name of a rank of a trace",
        before="96 lines of matplotlib",
        run=formula,
        is_harmless=True,
    ),
    Attack(what="imported weights with NaN", before="accepted in silence", run=weights(np.nan)),
    Attack(what="a GPT-2 of 10^9 layers", before="hang (> 60 s)", run=layers_of_an_import),
    Attack(what="`weight_map` outside", before="refused, but opened", run=index_of_an_import),
    Attack(what="a plan of 10^8 microbatches", before="hang (> 30 s)", run=microbatches),
)


def judge(attack: Attack, box: Sandbox, ended: Ended) -> tuple[bool, str]:
    """Return whether an attack failed, and what happened."""
    if box.is_executed:
        return False, "EXECUTED"
    if any("\x1b" in text for text in (ended.out, ended.err)):
        return False, "escapes printed"
    if attack.is_harmless and ended.code == 0:
        return True, "harmless: the command did its work"
    return ended.is_refusal, str(ended)
