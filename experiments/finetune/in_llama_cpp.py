"""The exports of `beside_peft` in llama.cpp: its own converters, and its answers.

A folder goes through `convert_hf_to_gguf.py`, adapters through `convert_lora_to_gguf.py`, in
float32.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.finetune.beside_peft import MODEL, PLACE, export_folders, run_folder
from experiments.llama_cpp import DEADLINE_S, sources
from experiments.other_python import answer_of
from experiments.serving import run as serving
from experiments.table import Row

_SIDE = Path(__file__).with_name("llama_side.py")
_CONTEXT = 512


def compare(case: Mapping[str, Any], python: Path) -> list[Row]:
    """Return the answers of both exports in llama.cpp beside those of the run.

    Raises:
        AssertionError: one differs.
        subprocess.SubprocessError: the sources cannot be downloaded, or a converter failed.
    """
    folders, folder = export_folders(run_folder(1)), sources(PLACE)
    rows: list[Row] = []
    for name, base, adapter in (
        ("merged", folders["merged"], None),
        ("adapter", MODEL, folders["adapter"]),
    ):
        whole, words = PLACE / f"{name}.gguf", (str(base), "--outtype", "f32")
        _converted(python, folder / "convert_hf_to_gguf.py", *words, "--outfile", str(whole))
        part = None if adapter is None else PLACE / f"{name}-part.gguf"
        if part is not None:
            given = (str(adapter), "--base", str(base), "--outtype", "f32", "--outfile", str(part))
            _converted(python, folder / "convert_lora_to_gguf.py", *given)
        asked = {key: case[key] for key in ("questions", "num_tokens", "threads")}
        files = {"gguf": str(whole), "adapter": str(part or ""), "context": _CONTEXT}
        theirs = answer_of(python, _SIDE, asked | files, timeout_s=DEADLINE_S)
        print(f"llama-cpp-python {theirs['version']}", flush=True)
        for row in serving.texts(
            run_folder(1), case["questions"], theirs["texts"], num_tokens=case["num_tokens"]
        ):
            there = row["transformers"]
            rows.append(
                {
                    "export": name,
                    "what": row["question"],
                    "jaxpipe": row["jaxpipe"],
                    "llama.cpp": there,
                }
            )
            assert row["equal"], rows[-1]
    return rows


def _converted(python: Path, script: Path, *words: str) -> None:
    subprocess.run([str(python), str(script), *words], check=True, timeout=DEADLINE_S)
