"""Measure tokens per second: `python -m experiments.generate_speed.run --python PYTHON`.

PYTHON has torch and transformers. Without `--python`, the stored results are printed again.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

from experiments.table import read_csv, write_csv
from jaxpipe.inference.sampling import Sampling
from jaxpipe.inference.tokens import generated
from jaxpipe.interchange import write_model
from jaxpipe.models import build_model, preset_config
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.runtime.checkpoint import flatten

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "speed.csv"
DEADLINE_S = 300.0


def main() -> None:
    """Measure both, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, help="a Python with torch and transformers")
    options = parser.parse_args()
    if options.python is not None:
        cases = tomllib.loads((HERE / "cases.toml").read_text())
        write_csv(list(_measured(options.python, cases)), RESULTS, number=".4g")
    for row in read_csv(RESULTS):
        print(" | ".join(row.values()))


def _measured(python: Path, cases: dict[str, Any]) -> Iterator[dict[str, Any]]:
    config = preset_config(cases["preset"])
    assert isinstance(config, LlamaConfig), config
    model = build_model(config)
    # Larger than fresh ones: the likeliest token is then not one of many that are nearly equal.
    params = jax.jit(
        lambda: jax.tree.map(
            lambda leaf: 4 * leaf if leaf.ndim > 1 else leaf,
            model.init(
                jax.random.key(cases["seed"]),
                layers=range(config.num_layers),
                embed=True,
                head=True,
            ),
        )
    )()
    tensors = flatten(params, first_layer=0)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), config, lambda names: {name: tensors[name] for name in names})
        with _theirs(python, folder) as (ask, versions):
            for batch in cases["batches"]:
                source = np.random.default_rng(cases["seed"])
                prompts = source.integers(0, config.vocabulary, (batch, cases["prompt"]))
                yield _row(model, params, prompts, ask, cases) | versions


def _row(
    model: Any, params: Any, prompts: np.ndarray, ask: Any, cases: dict[str, Any]
) -> dict[str, Any]:
    """Return the speeds for one batch; the first round of each compiles or warms up."""
    number = cases["tokens"]
    request = {"prompts": prompts.tolist(), "tokens": number}
    ours_s, theirs_s, equal = [], [], []
    for _ in range(1 + cases["rounds"]):
        answer = ask(request)
        begin_s = time.perf_counter()
        steps = list(
            generated(
                model, params, list(prompts), num_tokens=number, sampling=Sampling(temperature=0.0)
            )
        )
        ours_s.append(time.perf_counter() - begin_s)
        theirs_s.append(answer["seconds"])
        equal.append([list(each) for each in zip(*steps, strict=True)] == answer["tokens"])
    drawn = prompts.shape[0] * number
    ours, theirs = (drawn / median(each[1:]) for each in (ours_s, theirs_s))
    return {
        "batch": prompts.shape[0],
        "jaxpipe, tokens/s": ours,
        "transformers, tokens/s": theirs,
        "ratio": ours / theirs,
        "first call of jaxpipe, s": ours_s[0],
        "equal tokens": str(all(equal)),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


@contextmanager
def _theirs(python: Path, folder: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Start the other process; yield what asks it, and its versions."""
    command: Sequence[str] = [str(python), str(HERE / "theirs.py"), folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        requests, answers = one.stdin, one.stdout
        assert requests is not None, command
        assert answers is not None, command

        def ask(request: dict[str, Any]) -> dict[str, Any]:
            print(json.dumps(request), file=requests, flush=True)
            return json.loads(answers.readline())

        try:
            yield ask, json.loads(answers.readline())
            requests.close()
            one.wait(DEADLINE_S)
        finally:
            one.kill()


if __name__ == "__main__":
    main()
