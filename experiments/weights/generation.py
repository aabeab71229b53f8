"""Texts of Phi 3 that outgrow the length of its pretraining, beside those of transformers.

    python -m experiments.weights.generation --python PYTHON [--path FOLDER]

PYTHON has torch and transformers; FOLDER, if given, has another version of transformers, which then
continues the same prompts. The model is small and random, with LongRoPE scaling. jaxpipe continues
all prompts in one batch, with its cache.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments.weights.mutations import small_fields
from experiments.weights.run import TIMEOUT_S, answer_of, asked, theirs, tree_of, write_rows
from jaxpipe.inference.sampling import Sampling
from jaxpipe.inference.tokens import generated
from jaxpipe.interchange import read_model
from jaxpipe.models import LlamaConfig, build_model

LENGTH, NUM_TOKENS = 12, 20
"""The tokens of a text of pretraining, and those that are generated."""
PROMPT_LENGTHS = (5, 11, 12, 15)
"""They outgrow it after 8, 2 and 1 tokens; the last one has from the beginning."""
FIELDS: dict[str, Any] = {
    "hidden_size": 32,
    "head_dim": 8,
    "num_hidden_layers": 3,
    "vocab_size": 101,
    "max_position_embeddings": 64,
    "original_max_position_embeddings": LENGTH,
    "partial_rotary_factor": 0.75,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.1, 1.2],
        "long_factor": [1.5, 4.0, 9.0],
    },
}


def main(python: Path, path: Path | None = None) -> int:
    """Print and write a row for each version; return 1 if texts without a cache differ."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, FIELDS["vocab_size"], n).tolist() for n in PROMPT_LENGTHS]
    is_wrong = False
    with theirs(python, None) as process, tempfile.TemporaryDirectory() as place:
        answer_of(process)  # its versions
        folder = Path(place) / "phi3"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**small_fields("phi3"), **FIELDS}))
        assert "logits" in asked(process, folder)
        ours = _texts(folder, prompts)
        for version in dict.fromkeys((None, path)):
            answer = _answer(python, version, folder, prompts)
            row: dict[str, Any] = {
                "architecture": "phi3",
                "transformers": answer["transformers"],
                "texts": len(prompts),
                "tokens": NUM_TOKENS,
            }
            for name in ("cached", "uncached"):
                row[f"equal_{name}"] = sum(map(list.__eq__, ours, answer[name]))
            print(row, flush=True)
            write_rows(f"generation-{answer['transformers'].partition('.')[0]}.csv", [row])
            is_wrong |= row["equal_uncached"] < len(prompts)
    return int(is_wrong)


def _texts(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    config, streamed = read_model(folder)
    assert isinstance(config, LlamaConfig)
    tree = tree_of({tensor.name: tensor.array() for tensor in streamed}, config)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), tree)
    steps = generated(
        build_model(config),
        params,
        [np.array(prompt, np.int32) for prompt in prompts],
        num_tokens=NUM_TOKENS,
        sampling=Sampling(temperature=0.0),
    )
    return [list(text) for text in zip(*steps, strict=True)]


def _answer(
    python: Path, path: Path | None, folder: Path, prompts: list[list[int]]
) -> dict[str, Any]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    side = str(Path(__file__).with_name("generation_side.py"))
    done = subprocess.run(
        [str(python), side, json.dumps(prompts), str(NUM_TOKENS), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        timeout=10 * TIMEOUT_S,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
