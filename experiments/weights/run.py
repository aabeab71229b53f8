"""Compare what an import means with `transformers`: random mutations of each architecture's config.

    python -m experiments.weights.run --python PYTHON [--path FOLDER] [--count 300]

PYTHON has torch and transformers; FOLDER, if given, comes first on its PYTHONPATH, with another
version of transformers. Each model is of a mutated `config.json`, saved with random weights by
transformers. jaxpipe reads the folder, or refuses it; what it accepts must have the logits of
transformers, computed here by the NumPy oracle of the tests in float64.
"""

import csv
import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tyro

from experiments.weights.mutations import mutated
from jaxpipe.errors import UserError
from jaxpipe.interchange import read_model
from jaxpipe.interchange.architectures import ARCHITECTURES
from jaxpipe.models import GptConfig, LlamaConfig, ModelConfig
from tests.oracles import numpy_gpt2, numpy_llama

RESULTS = Path(__file__).parent / "results"
TOKENS = [[1, 2, 3, 0, 18, 4, 4, 7, 5], [10, 9, 8, 7, 6, 5, 4, 3, 2]]
TOLERANCE = 1e-5
"""Of the largest logit: one is float32, the other float64."""
TIMEOUT_S = 60.0


@dataclass
class Counts:
    """What became of the mutations of one architecture."""

    outcomes: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0
    wrong: list[dict[str, Any]] = field(default_factory=list)


def main(
    python: Path, path: Path | None = None, count: int = 300, kinds: tuple[str, ...] = ()
) -> int:
    """Print and write a row for each architecture; return 1 if one has another meaning."""
    rows, is_wrong = [], False
    with theirs(python, path) as process, tempfile.TemporaryDirectory() as place:
        version = json.loads(answer_of(process))
        # Version 4 does not read this form, which version 5 writes.
        without = ("rope_parameters",) if version["transformers"].startswith("4") else ()
        for kind in kinds or (*ARCHITECTURES, "gpt2"):
            counts = _counts(process, kind, count, Path(place), without=without)
            row = {
                "architecture": kind,
                "transformers": version["transformers"],
                "mutations": count,
                "equal": counts.outcomes["equal"],
                "refused": counts.outcomes["refused"],
                "refused_by_both": counts.outcomes["refused by both"],
                "accepted_here_alone": counts.outcomes["accepted here alone"],
                "different": counts.outcomes["different"],
                "largest_difference": f"{counts.largest:.1e}",
            }
            print(row, flush=True)
            for case in counts.wrong[:20]:
                print("   ", json.dumps(case), flush=True)
            is_wrong |= bool(counts.outcomes["different"])
            rows.append(row)
    write_rows(f"transformers-{version['transformers'].partition('.')[0]}.csv", rows)
    return int(is_wrong)


def write_rows(name: str, rows: list[dict[str, Any]]) -> None:
    """Write a file of results; rows of other architectures stay."""
    path = RESULTS / name
    merged: dict[str, dict[str, Any]] = {}
    if path.exists():
        with path.open(newline="") as file:
            merged = {row["architecture"]: row for row in csv.DictReader(file)}
    merged |= {row["architecture"]: row for row in rows}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(merged.values())


def _counts(
    process: "subprocess.Popen[str]",
    kind: str,
    count: int,
    place: Path,
    *,
    without: tuple[str, ...],
) -> Counts:
    counts = Counts()
    for seed in range(count):
        fields = mutated(kind, Random(f"{kind} {seed}"), without=without)
        folder = place / f"{kind}-{seed}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(fields))
        answer = asked(process, folder)
        try:
            ours = logits(folder)
            refusal = None
        except UserError as error:
            ours, refusal = None, str(error)
        outcome, difference = outcome_of(ours, answer)
        counts.outcomes[outcome] += 1
        if outcome == "equal":
            counts.largest = max(counts.largest, difference)
        if outcome in ("different", "accepted here alone"):
            counts.wrong.append(
                {
                    "outcome": outcome,
                    "fields": fields,
                    "difference": difference,
                    "theirs": answer.get("error"),
                    "ours": refusal,
                }
            )
    return counts


def outcome_of(ours: Any, answer: dict[str, Any]) -> tuple[str, float]:
    """Return what became of a case, and the difference of its logits."""
    if ours is None:
        return ("refused by both" if "error" in answer else "refused"), 0.0
    if "error" in answer:
        return "accepted here alone", 0.0
    theirs = np.array(answer["logits"])
    difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    # A comparison with NaN is false, too.
    return ("equal" if difference <= TOLERANCE else "different"), difference


def logits(folder: Path, rows: Sequence[Sequence[int]] = TOKENS) -> Any:
    """Return the logits of a folder: read by jaxpipe, computed in NumPy."""
    config, streamed = read_model(folder)
    return logits_of(config, {tensor.name: tensor.array() for tensor in streamed}, rows)


def logits_of(
    config: ModelConfig,
    tensors: dict[str, np.ndarray],
    rows: Sequence[Sequence[int]] = TOKENS,
) -> Any:
    """Return the logits of a model with these tensors, by the names of checkpoints."""
    tokens = np.array(rows)
    if isinstance(config, GptConfig):
        from jaxpipe.interchange import to_gpt2_tensors

        return numpy_gpt2.logits(to_gpt2_tensors(tensors, config), tokens, config)
    assert isinstance(config, LlamaConfig)
    return numpy_llama.logits(config, tree_of(tensors, config), tokens)


def tree_of(tensors: dict[str, np.ndarray], config: LlamaConfig) -> dict[str, Any]:
    """Return the tensors of a checkpoint as the parameters of a model, layers stacked."""
    layers: dict[str, list[np.ndarray]] = {}
    tree: dict[str, Any] = {}
    for name, tensor in tensors.items():
        part, _, last = name.partition(".")
        if part != "blocks":
            _put(tree, name, tensor)
            continue
        layers.setdefault(last.partition(".")[2], []).append(tensor)
    for name, stack in layers.items():
        assert len(stack) == config.num_layers
        _put(tree, f"blocks.{name}", np.stack(stack).astype(np.float64))
    return tree


def _put(tree: dict[str, Any], name: str, tensor: np.ndarray) -> None:
    *parts, last = name.split(".")
    for part in parts:
        tree = tree.setdefault(part, {})
    tree[last] = tensor.astype(np.float64)


@contextmanager
def theirs(python: Path, path: Path | None) -> "Iterator[subprocess.Popen[str]]":
    """Yield a process that makes models of `config.json` and computes their logits."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    process = subprocess.Popen(
        [str(python), str(Path(__file__).with_name("theirs.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT_S)


def asked(process: "subprocess.Popen[str]", folder: Path, **more: Any) -> dict[str, Any]:
    """Return the answer of the process for a folder, which then has weights, too."""
    assert process.stdin is not None
    process.stdin.write(json.dumps({"folder": str(folder), "tokens": TOKENS, **more}) + "\n")
    process.stdin.flush()
    return json.loads(answer_of(process))


def answer_of(process: "subprocess.Popen[str]") -> str:
    """Return the next line of the process that is an object."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line.startswith("{"):
            return line
    raise RuntimeError("the other process has ended: it needs torch and transformers")


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
