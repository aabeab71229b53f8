"""Pretrain, tune with adapters over two regions, export, and compare with transformers."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.finetune.command import jaxpipe, settings
from experiments.finetune.texts import write_texts
from experiments.table import Row
from jaxpipe.config import restored_model, saved_config
from jaxpipe.inference.held_out_losses import held_out_losses
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.data import open_dataset
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.stage.stage import Stage

_HERE = Path(__file__).parent
_DATA, _RUNS = Path("data/finetune"), Path("runs/finetune")
PRETRAINED, _TUNED = _RUNS / "pretrained", _RUNS / "tuned"
_WINDOWS = 400
"""Held-out windows of each text: about 50,000 tokens."""
_DEADLINE_S = 300.0


def prepare(cases: Mapping[str, Any], *, tokenizer: Path | None = None) -> Mapping[str, Path]:
    """Download the texts, turn them into tokens, and return the datasets by language.

    Tokens are bytes; an exported model has a `tokenizer` that says so in its own format.
    """
    folders = {}
    for language, text in write_texts(cases["texts"], _DATA / "texts").items():
        folders[language] = _DATA / (f"{language}-exported" if tokenizer else language)
        words = ("--tokenizer", tokenizer) if tokenizer else ()
        jaxpipe(
            *("data", "prepare", "--out", folders[language], "--source", text),
            *("--if-missing", *words),
        )
    return folders


def pretrain(cases: Mapping[str, Any]) -> Row:
    """Train the model on English and CPython, and return what that took; continue if begun."""
    folders = prepare(cases)
    again = ("--resume",) if PRETRAINED.exists() else ()
    jaxpipe("train", cases["pretrain"]["config"], *again, *settings(f"run.folder={PRETRAINED}"))
    return {"text": "english", **_cost(PRETRAINED), **_losses(PRETRAINED, folders)}


def tune(cases: Mapping[str, Any], python: Path | None) -> list[Row]:
    """Tune the pretrained model on French; return the losses before and after.

    `python` has torch and transformers, which open the result; without it nobody compares.

    Raises:
        FileNotFoundError: there is no pretrained model.
        AssertionError: transformers has other logits.
    """
    case = cases["tune"]
    if not PRETRAINED.exists():
        raise FileNotFoundError(f"{PRETRAINED} is missing: run `pretrain` first")
    rows: list[Row] = []
    with TemporaryDirectory() as name:
        first, last = Path(name) / "pretrained", Path(name) / "tuned"
        jaxpipe("export", PRETRAINED, "--out", first)
        folders = prepare(cases, tokenizer=first / "tokenizer.json")
        jaxpipe("import", first, "--out", _TUNED, "--data", folders["french"])
        before = _losses(_TUNED, folders)
        jaxpipe("train", _TUNED / "config.toml", "--resume", *settings(*case["settings"]))
        after = _losses(_TUNED, folders)
        jaxpipe("export", _TUNED, "--out", last)
        for model, losses in (("before", before), ("after", after)):
            rows.append({"adapters": model, **losses})
        if python is not None:
            difference = _difference(last, python, folders["french"])
            print(f"largest difference of logits from transformers: {difference:.2g}", flush=True)
            assert difference < case["within"], difference
            rows = [{**row, "logits apart": difference} for row in rows]
    return rows


def _cost(run: Path) -> Row:
    steps = read_metrics(run / "metrics.jsonl")
    return {
        "steps": len(steps),
        "tokens, M": sum(step.tokens_per_s * step.step_s for step in steps) / 1e6,
        "minutes": sum(step.step_s for step in steps) / 60,
    }


def _losses(run: Path, folders: Mapping[str, Path]) -> Row:
    """Return the held-out loss on each text, measured on one device [nats per byte]."""
    checkpoint = open_checkpoint(latest(run))
    found = held_out_losses(checkpoint, folders.values(), most_windows=_WINDOWS)
    return {
        f"{language}, held out": f"{each.loss:.4f}"
        for language, each in zip(folders, found, strict=True)
    }


def _difference(exported: Path, python: Path, data: Path) -> float:
    """Return the largest difference of our logits from those of transformers, in float32."""
    checkpoint = open_checkpoint(latest(_TUNED))
    model, params = restored_model(checkpoint)
    sequence = saved_config(checkpoint).model.sequence
    tokens = open_dataset(data).eval[: 4 * sequence].astype(np.int32).reshape(4, -1)
    layers = range(model.num_layers)
    stage = Stage(model=model, index=0, num_stages=1, layers=layers, loop=Loop.SCAN)
    ours = np.asarray(stage.logits(jax.device_put(params), jnp.asarray(tokens)))
    with TemporaryDirectory() as name:
        asked, answered = Path(name) / "tokens.npy", Path(name) / "logits.npy"
        np.save(asked, tokens)
        command = [python, _HERE / "theirs.py", exported, asked, answered]
        subprocess.run(command, check=True, timeout=_DEADLINE_S)
        return float(np.abs(np.load(answered) - ours).max())
