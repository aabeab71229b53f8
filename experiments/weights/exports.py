"""Import, LoRA in two stages, and exports of each architecture, opened by transformers and PEFT.

    python -m experiments.weights.exports --python PYTHON [--path FOLDER]
    python -m experiments.weights.exports --python PYTHON --llama
    python -m experiments.weights.exports --python PYTHON --vllm OTHER_PYTHON

PYTHON has torch, transformers and peft; FOLDER, if given, has another version of transformers,
which then opens the same exports. With `--llama`, PYTHON has llama_cpp and sentencepiece, too, and
llama.cpp alone converts and computes the merged ones. With `--vllm`, vLLM of OTHER_PYTHON alone
continues prompts with them.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.llama_cpp import sources
from experiments.weights.mutations import small_fields
from experiments.weights.run import (
    TIMEOUT_S,
    TOKENS,
    answer_of,
    asked,
    logits,
    theirs,
    write_rows,
)
from jaxpipe.cli.main import main as jaxpipe
from jaxpipe.config import load_config, to_tree
from jaxpipe.interchange.architectures import ARCHITECTURES, LLAMA
from tests.runtime.training import run_tree

STEPS = 3
_MEASURED = ("merged", "adapter")
WITHIN, WITHIN_OF_TABLE, WITHIN_OF_VLLM = 1e-5, 5e-3, 1e-4
"""Of the largest logit. llama.cpp looks GELU up in a table of float16 (`GGML_GELU_FP16`); of vLLM,
log probabilities after its own tokens are compared, and those tokens are the likeliest."""
_GELU = ("gemma", "gemma2", "gemma3_text", "gpt2")
_GEMMA = {"tie_word_embeddings": True}
_PUBLISHED: dict[str, dict[str, Any]] = {
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA, "query_pre_attn_scalar": 4},
    "gemma3_text": {**_GEMMA, "query_pre_attn_scalar": 4, "sliding_window_pattern": 6},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 8},
    "qwen3_moe": {"norm_topk_prob": True},
}
"""What llama.cpp takes for granted of some architectures: it reads other values of no file.

Its heads are scaled by their size (4 here), and published models have these values.
"""
_WINDOWS = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
_LAYERED: dict[str, dict[str, Any]] = {
    "gemma2": {"num_hidden_layers": 5},
    "gemma3_text": {"num_hidden_layers": 5},
    "smollm3": {"no_rope_layers": [0, 1, 1, 0]},
    "qwen2": _WINDOWS,
    "qwen3": _WINDOWS,
}
"""Layers that are no groups; other readers take some of these fields for granted."""
_VLLM_KINDS = ("llama", "qwen2", "qwen3")
_VLLM = {"hidden_size": 128, "head_dim": 32}
"""The attention of vLLM on CPUs refuses heads of 8 numbers."""
SETTINGS = (
    "plan.stages=2",
    f"train.steps={STEPS}",
    "train.batch=2",
    "train.sequence=16",
    "train.eval_batches=1",
    "optimizer.warmup_steps=0",
    "optimizer.learning_rate=0.1",
    "lora.rank=2",
)


def main(
    python: Path,
    path: Path | None = None,
    kinds: tuple[str, ...] = (),
    *,
    llama: bool = False,
    vllm: Path | None = None,
) -> int:
    """Print and write a row for each architecture and version; return 1 if logits differ."""
    rows: list[dict[str, Any]] = []
    kinds = kinds or (_VLLM_KINDS if vllm else (*ARCHITECTURES, "gpt2"))
    with theirs(python, None) as process, tempfile.TemporaryDirectory() as place:
        answer_of(process)  # its versions
        data = Path(place) / "data"
        text = Path(place) / "text.txt"
        text.write_text("a text of some words, again and again; " * 400)
        assert jaxpipe(["data", "prepare", "--out", str(data), "--source", str(text)]) == 0
        for kind in kinds:
            folder = Path(place) / kind
            folder.mkdir()
            # Two stages of at least a group of layers.
            depth = {} if kind == "gpt2" else {"num_hidden_layers": 4}
            more = {"vocab_size": 256, "tie_word_embeddings": False, **depth}
            fields = {**small_fields(kind), **more, **_special(kind, llama=llama, vllm=vllm)}
            (folder / "config.json").write_text(json.dumps(fields))
            assert "logits" in asked(process, folder), kind
            _train(kind, folder, data)
        folders = [Path(place) / kind for kind in kinds]
        # Models for the others have fewer kinds of fields: rows of transformers are of all.
        for version in () if llama or vllm else dict.fromkeys((None, path)):
            answers = _read(folders, python, version)
            answered = [
                _row(folder.name, folder, answer)
                for folder, answer in zip(folders, answers, strict=True)
            ]
            for row in answered:
                print(row, flush=True)
            write_rows(f"exports-{answered[0]['transformers'].partition('.')[0]}.csv", answered)
            rows += answered
        if llama:
            answered = list(_of_llama(folders, python))
            write_rows("exports-llama-cpp.csv", answered)
            rows += answered
        if vllm is not None:
            answered = list(_of_vllm(folders, vllm))
            write_rows("exports-vllm.csv", answered)
            rows += answered
    return int(any(_is_wrong(row) for row in rows))


def _special(kind: str, *, llama: bool, vllm: Path | None) -> dict[str, Any]:
    """Return the fields of an architecture for a reader."""
    if vllm is not None:
        return _VLLM
    return (_PUBLISHED if llama else _LAYERED).get(kind, {})


def _is_wrong(row: dict[str, Any]) -> bool:
    if row.get("error"):
        return True
    if "vllm" in row:
        return float(row["merged"]) > WITHIN_OF_VLLM
    by_table = "llama_cpp_python" in row and row["architecture"] in _GELU
    most = WITHIN_OF_TABLE if by_table else WITHIN
    return any(float(row[name]) > most for name in _MEASURED if name in row)


def _outputs(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(f"{folder.name}-out"), folder.with_name(f"{folder.name}-lora")


def _train(kind: str, folder: Path, data: Path) -> None:
    run, (merged, adapter) = folder.with_name(f"{kind}-run"), _outputs(folder)
    assert jaxpipe(["import", str(folder), "-o", str(run), "--data", str(data)]) == 0
    products = ["moe.gate", "moe.up", "moe.down"]  # of experts; a router has no adapters in PEFT
    targets = products if ARCHITECTURES.get(kind, LLAMA).experts else ["mlp.*"]
    targets = ["attention.*", *targets]
    changes = [*SETTINGS, f"lora.targets={json.dumps(targets)}"]
    metrics = run_tree(to_tree(load_config(run / "config.toml", changes)), resume=True)
    assert len(metrics) == STEPS
    assert jaxpipe(["export", str(run), "-o", str(merged)]) == 0
    assert jaxpipe(["export", str(run), "-o", str(adapter), "--adapter"]) == 0


def _read(folders: list[Path], python: Path, path: Path | None) -> list[dict[str, Any]]:
    """Return what transformers and PEFT make of the exports of these models."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    outputs = [str(output) for folder in folders for output in _outputs(folder)]
    reader = str(Path(__file__).with_name("readers.py"))
    done = subprocess.run(
        [str(python), reader, json.dumps(TOKENS), *outputs],
        capture_output=True,
        text=True,
        env=environment,
        timeout=10 * TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _answers(python: Path, side: str, folders: list[Path], *words: str) -> list[dict[str, Any]]:
    """Return the lines that a program of a Python of its own prints about the merged exports."""
    outputs = [str(_outputs(folder)[0]) for folder in folders]
    program = str(Path(__file__).with_name(side))
    done = subprocess.run(
        [str(python), program, *words, json.dumps(TOKENS), *outputs],
        stdout=subprocess.PIPE,
        text=True,
        timeout=20 * TIMEOUT_S,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]


def _of_vllm(folders: list[Path], python: Path) -> Iterator[dict[str, Any]]:
    """Print and yield how vLLM continues prompts with the merged exports."""
    first, *answers = _answers(python, "vllm_side.py", folders)
    for folder, answer in zip(folders, answers, strict=True):
        row = {"architecture": folder.name, "vllm": first["version"], "merged": ""}
        row |= {"tokens": "", "error": answer.get("error", "")}
        if "error" not in answer:
            begun = len(TOKENS[0]) - 1
            rows = [[*row, *said] for row, said in zip(TOKENS, answer["tokens"], strict=True)]
            ours = logits(_outputs(folder)[0], rows)[:, begun:-1]
            largest = np.abs(ours).max()
            theirs_of = np.array(answer["logprobs"])
            equal = np.array_equal(ours.argmax(-1), answer["tokens"])
            ours = ours - np.log(np.exp(ours).sum(-1, keepdims=True))
            row["merged"] = f"{np.abs(ours - theirs_of).max() / largest:.1e}"
            row["tokens"] = str(theirs_of[..., 0].size)
            row["error"] = "" if equal else "other tokens are the most likely ones"
        print(row, flush=True)
        yield row


def _of_llama(folders: list[Path], python: Path) -> Iterator[dict[str, Any]]:
    """Print and yield what llama.cpp makes of the merged exports."""
    first, *answers = _answers(python, "llama_side.py", folders, str(sources(folders[0].parent)))
    for folder, answer in zip(folders, answers, strict=True):
        ours, row = logits(_outputs(folder)[0]), {"architecture": folder.name}
        row |= {"llama_cpp_python": first["version"], "merged": "", "error": ""}
        if "error" in answer:
            row["error"] = answer["error"]
        else:
            apart = np.abs(ours - np.array(answer["logits"])).max() / np.abs(ours).max()
            row["merged"] = f"{apart:.1e}"
        print(row, flush=True)
        yield row


def _row(kind: str, folder: Path, answer: dict[str, Any]) -> dict[str, Any]:
    ours, before = logits(_outputs(folder)[0]), logits(folder)
    largest = np.abs(ours).max()
    return {
        "architecture": kind,
        "transformers": answer["versions"][0],
        "peft": answer["versions"][1],
        "steps": STEPS,
        "moved": f"{np.abs(ours - before).max() / largest:.1e}",
        "merged": f"{np.abs(ours - np.array(answer['merged'])).max() / largest:.1e}",
        "adapter": f"{np.abs(ours - np.array(answer['adapter'])).max() / largest:.1e}",
        "end": answer["end"],
    }


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
