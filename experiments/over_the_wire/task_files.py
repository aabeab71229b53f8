"""The files of a task: the initial weights and the samples of jaxpipe, for the other systems.

Weights are those of jaxpipe's seed, in the layout and under the names of torch: kernels of shape
(out, in), blocks by the number of their layer.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.config import Config
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.runtime.data import mixture_of, open_dataset
from jaxpipe.runtime.stage.optimizer import learning_rate

_SIZES = ("num_layers", "dim", "num_heads", "sequence", "vocabulary")


def write_task(folder: Path, config: Config, values: Mapping[str, Any]) -> None:
    """Write the files that `peers.peer.Task` reads; `values` are its fields that differ."""
    folder.mkdir(exist_ok=True)
    model, train = gpt_config(config), config.train
    weights: dict[str, Any] = dict(torch_weights(model, seed=config.run.seed))
    np.savez(folder / "weights.npz", **weights)
    batches, held_out = samples(config)
    np.save(folder / "train.npy", batches)
    np.save(folder / "held_out.npy", held_out)
    rates = learning_rate(config.optimizer, num_steps=train.steps)
    task = {
        "model": {name: getattr(model, name) for name in _SIZES},
        "learning_rates": [np.asarray(rates(step)).item() for step in range(train.steps)],
        "eval_steps": [s for s in range(1, train.steps + 1) if train.evaluates_after(s)],
        **values,
    }
    (folder / "task.json").write_text(json.dumps(task, indent=1))


def samples(config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Return the batches of all steps, and the held-out samples that jaxpipe measures."""
    assert config.data.folder is not None
    data = mixture_of(
        [open_dataset(Path(config.data.folder))], (1.0,), sequence=config.model.sequence
    )
    batch, seed = config.train.batch, config.run.seed
    steps = range(config.train.steps)
    batches = [data.train_samples(seed=seed, step=step, batch=batch).rows for step in steps]
    return np.stack(batches), data.eval_samples(index=0, batch=batch).rows


def gpt_config(config: Config) -> GptConfig:
    """Return the sizes of the model, which is a GPT."""
    assert isinstance(config.model, GptConfig), config.model
    return config.model


def first_losses(config: Config, *, num_parts: int) -> list[float]:
    """Return the losses of equal parts of the first batch, with the initial weights, in jaxpipe."""
    model = gpt_config(config)
    gpt, params = Gpt(model), initial(model, seed=config.run.seed)
    batch = samples(config)[0][0]

    def loss(rows: np.ndarray) -> float:
        x: Any = gpt.embed(params, jnp.asarray(rows[:, :-1]), None)
        for layer in range(model.num_layers):
            x = gpt.block(jax.tree.map(lambda leaf, i=layer: leaf[i], params["blocks"]), x, None)
        targets = jnp.asarray(rows[:, 1:])
        return float(gpt.loss(params, x, targets)) / targets.size

    return [loss(rows.astype(np.int32)) for rows in np.split(batch, num_parts)]


def initial(model: GptConfig, *, seed: int) -> Any:
    """Return the initial weights, as one stage has them."""
    layers = range(model.num_layers)
    return Gpt(model).init(jax.random.key(seed), layers=layers, embed=True, head=True)


def torch_weights(model: GptConfig, *, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each initial weight with its name in torch."""
    tree = jax.tree.map(np.asarray, initial(model, seed=seed))
    yield "tokens.weight", tree["embed"]["tokens"]
    yield "positions.weight", tree["embed"]["positions"]
    blocks = tree["blocks"]
    linear = {
        "qkv": blocks["attention"]["qkv"],
        "project": blocks["attention"]["project"],
        **blocks["mlp"],
    }
    for layer in range(model.num_layers):
        for name in ("norm1", "norm2"):
            yield f"blocks.{layer}.{name}.weight", blocks[name]["scale"][layer]
            yield f"blocks.{layer}.{name}.bias", blocks[name]["bias"][layer]
        for name, part in linear.items():
            kernel = part["kernel"][layer]
            yield f"blocks.{layer}.{name}.weight", kernel.reshape(len(kernel), -1).T
            yield f"blocks.{layer}.{name}.bias", part["bias"][layer]
    yield "norm.weight", tree["head"]["norm"]["scale"]
    yield "norm.bias", tree["head"]["norm"]["bias"]
