# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Bring your own model
#
# The runtime knows no GPT. It asks for a stack of equal layers between an embedding and a head, by
# five methods (`jaxpipe.runtime.stage.model.Model`):
#
#     tokens ──► embed ──► block, num_layers times ──► head ──► logits, or loss
#
# Whatever has them can be cut, placed, scheduled, traced and saved. Here is a model that is no
# transformer: layers that mix each token with the mean of those before it. It has parameters as
# nested dictionaries, and no framework.

# %%
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxpipe
from jaxpipe.pictures.palette import SKY, VERMILION
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.stage.model import Model, Parameters


@dataclass(frozen=True)
class Means:
    """Token by token, layer by layer: x + tanh(x and the mean so far, times a matrix)."""

    num_layers: int = 4
    sequence: int = 32
    vocabulary: int = 256
    dim: int = 32
    tied: bool = False
    split: ClassVar[dict[str, int]] = {}  # nothing is shared by the devices of a rank

    def init(self, key: jax.Array, *, layers: range, embed: bool, head: bool) -> Parameters:
        """Draw each part from the key and its own number, never from how the model is cut."""

        def draw(number: int, *shape: int) -> jax.Array:
            return 0.2 * jax.random.normal(jax.random.fold_in(key, number), shape)

        params: Parameters = {}
        if embed:
            params["embed"] = {"tokens": draw(1000, self.vocabulary, self.dim)}
        if layers:
            mixes = [draw(layer, 2 * self.dim, self.dim) for layer in layers]
            params["blocks"] = {"mix": jnp.stack(mixes)}
        if head:
            params["head"] = {"kernel": draw(1001, self.vocabulary, self.dim)}
        return params

    def embed(self, params: Parameters, tokens: jax.Array, key: jax.Array | None) -> jax.Array:
        """Look each token up."""
        return params["embed"]["tokens"][tokens]

    def block(self, layer: Parameters, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """Apply one layer."""
        seen = jnp.arange(1, x.shape[1] + 1)[:, None]
        both = jnp.concatenate([x, jnp.cumsum(x, axis=1) / seen], axis=-1)
        return x + jnp.tanh(both @ layer["mix"])

    def head(self, params: Parameters, x: jax.Array) -> jax.Array:
        """Return the logits."""
        return x @ params["head"]["kernel"].T

    def loss(self, params: Parameters, x: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the sum of the cross-entropy, in nats."""
        log_p = jax.nn.log_softmax(self.head(params, x).astype(jnp.float32))
        return -jnp.take_along_axis(log_p, targets[..., None], axis=-1).sum()


isinstance(Means(), Model)

# %% [markdown]
# `init` is asked for some of the layers, and has to draw the same numbers for a layer whoever asks:
# then a cut changes who computes, and not what.
#
# ## Train it
#
# The rest is as for any model: a dataset and a configuration, whose sizes are those of the model.
# First on one rank, then partitioned into two stages, with two replicas.

# %%
scratch = TemporaryDirectory()
folder = Path(scratch.name)
(folder / "text.txt").write_text("".join(f"{i} plus {i} is {2 * i}; " for i in range(1000)))
prepare(Source(path=folder / "text.txt"), folder / "data")


def losses(stages: int, replicas: int) -> list[float]:
    """Train for a few steps, and return the loss of each."""
    config = jaxpipe.config_from(
        {
            "run": {"folder": str(folder / f"{stages}x{replicas}")},
            "data": {"folder": str(folder / "data")},
            "model": {"preset": "tiny", "sequence": 32, "tied": False},
            "plan": {
                "cluster": "laptop",
                "stages": stages,
                "replicas": replicas,
                "microbatch": 1,
                "schedule": "1f1b",
            },
            "train": {"steps": 8, "batch": 8, "eval_batches": 1},
            "optimizer": {"learning_rate": 1e-2, "warmup_steps": 2},
        }
    )
    seen: list[StepMetrics] = []
    jaxpipe.train(config, model=Means(), observe=seen.append)
    return [each.loss for each in seen]


alone, pipelined = losses(1, 1), losses(2, 2)
figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
numbers = range(1, len(alone) + 1)
axes.plot(numbers, alone, "o-", color=SKY, markersize=10, label="one rank")
axes.plot(numbers, pipelined, ".-", color=VERMILION, label="2 stages x 2 replicas")
axes.set_xlabel("step")
axes.set_ylabel("loss, nats per token")
axes.legend()
axes.grid(alpha=0.3)

# %% [markdown]
# The losses are the same up to rounding. That is the test which every model of your own should
# pass.

# %%
largest = max(abs(one - four) for one, four in zip(alone, pipelined, strict=True))
print(f"the largest difference is {largest:.1e} nats")
assert largest < 1e-3

# %% [markdown]
# ## Next
#
# - `Means.split` may name parameters that the devices of a rank share (`[mesh] tensor = 2`).
# - `models/gpt.py` is the model of the examples: the same five methods.
# - `jaxpipe.profile` measures the parts of a GPT; [1. Profile a stage](1_profile_a_stage.ipynb).
