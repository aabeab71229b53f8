"""Compare methods of narrow boundaries: `python -m experiments.low_rank.methods [METHOD RANK ...]`.

One process and plain optax, without the runtime. A GPT of 5 layers keeps few numbers of a token
after layers 2, 3 and 4. With the embedding e, a projection P of rank r, and U = P^T at the start:

=========== ======================================================= ===============================
method      what the next layer reads                               parameters of its own
=========== ======================================================= ===============================
none        x                                                       none
plain       U P x                                                   P, U
shared      e + U P (x - e): e of the first stage on all            P, U
subspace    e + what layers add, projected on one random subspace   none
side        U P x + tables of token and position                    P, U, tables
previous    side + a table of the token before                      P, U, tables
side only   x + tables of token and position                        tables
all tables  side only + a table of the token before                 tables
=========== ======================================================= ===============================
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.progress import counted
from experiments.table import append_csv
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig

_RESULTS = Path(__file__).parent / "results" / "methods.csv"
_DATA = Path("data/topics")
_LAYERS, _DIM, _SEQUENCE, _BATCH, _STEPS, _VOCABULARY = 5, 128, 64, 16, 400, 256
_PLACES = (2, 3, 4)
_MODEL = Gpt(
    GptConfig(num_layers=_LAYERS, dim=_DIM, num_heads=4, sequence=_SEQUENCE, vocabulary=_VOCABULARY)
)
_PROJECTS = ("plain", "shared", "side", "previous")
_TABLES = {
    "side": ("tokens", "positions"),
    "side only": ("tokens", "positions"),
    "previous": ("tokens", "previous", "positions"),
    "all tables": ("tokens", "previous", "positions"),
}
_KEYS = {"tokens": 1, "positions": 2, "previous": 3}
_RUNS = (
    *(("none", 0), ("side only", 0), ("all tables", 0)),
    *((method, rank) for rank in (8, 2) for method in (*_PROJECTS, "subspace")),
)


def main(words: Sequence[str]) -> None:
    """Train with each method and rank once, and append its held-out loss."""
    runs = [
        (method, int(rank)) for method, rank in zip(words[::2], words[1::2], strict=True)
    ] or _RUNS
    for method, rank in counted(runs, "runs"):
        loss = _trained(method, rank)
        append_csv({"method": method, "rank": rank, "loss": f"{loss:.4f}"}, _RESULTS)


def _initial(method: str, rank: int) -> dict[str, Any]:
    key = jax.random.key(0)
    params = _MODEL.init(key, layers=range(_LAYERS), embed=True, head=True)
    return params | {"places": {str(n): _place(method, rank, key, n) for n in _PLACES}}


def _place(method: str, rank: int, key: Any, after: int) -> dict[str, Any]:
    key = jax.random.fold_in(jax.random.fold_in(key, 77), after)
    drawn: dict[str, Any] = {}
    if method in _PROJECTS:
        basis, _ = jnp.linalg.qr(jax.random.normal(key, (_DIM, rank)))
        drawn = {"down": basis, "up": basis.T}
    for name in _TABLES.get(method, ()):
        rows = _SEQUENCE if name == "positions" else _VOCABULARY
        table = jax.random.normal(jax.random.fold_in(key, _KEYS[name]), (rows, _DIM))
        drawn[name] = 0.02 * table
    return drawn


def _behind(place: dict[str, Any], x: Any, embedded: Any, tokens: Any, *, method: str) -> Any:
    """Return the input of the layer behind a place."""
    around = embedded if method == "shared" else 0.0
    if "down" in place:
        x = around + ((x - around) @ place["down"]) @ place["up"]
    if "tokens" in place:
        x = x + place["tokens"][tokens] + place["positions"]
    if "previous" in place:
        x = x + place["previous"][jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))]
    return x


def _loss(params: dict[str, Any], windows: Any, *, method: str, rank: int) -> Any:
    tokens = windows[:, :-1]
    x: Any = _MODEL.embed(params, tokens, None)
    embedded = x
    for number in range(_LAYERS):
        layer = jax.tree.map(lambda leaf, n=number: leaf[n], params["blocks"])
        output = _MODEL.block(layer, x, None)
        if method == "subspace":
            basis, _ = jnp.linalg.qr(jax.random.normal(jax.random.key(9), (_DIM, rank)))
            output = x + ((output - x) @ basis) @ basis.T
        x = output
        if number + 1 in _PLACES:
            x = _behind(params["places"][str(number + 1)], x, embedded, tokens, method=method)
    return _MODEL.loss(params, x, windows[:, 1:]) / tokens.size


def _trained(method: str, rank: int) -> float:
    """Return the held-out loss after all steps, in nats per token."""
    loss = partial(_loss, method=method, rank=rank)
    rate = optax.warmup_cosine_decay_schedule(0, 2e-3, 40, _STEPS)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.01)
    )

    @jax.jit
    def step(params: Any, state: Any, windows: Any) -> tuple[Any, Any]:
        changes, state = optimizer.update(jax.grad(loss)(params, windows), state, params)
        return optax.apply_updates(params, changes), state

    params = _initial(method, rank)
    state = optimizer.init(params)
    generator, text = np.random.default_rng(0), np.load(_DATA / "train.npy")
    for _ in range(_STEPS):
        params, state = step(params, state, _windows(generator, text, _BATCH))
    generator, text = np.random.default_rng(1234), np.load(_DATA / "eval.npy")
    evaluate = jax.jit(loss)
    return float(np.mean([evaluate(params, _windows(generator, text, 64)) for _ in range(16)]))


def _windows(generator: np.random.Generator, text: np.ndarray, count: int) -> np.ndarray:
    starts = generator.integers(0, len(text) - _SEQUENCE - 1, count)
    return np.stack([text[n : n + _SEQUENCE + 1] for n in starts]).astype(np.int32)


if __name__ == "__main__":
    main(sys.argv[1:])
