"""A model that jaxpipe has never seen: gated running means, tied, as a pipeline of two stages."""

import sys
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import jaxpipe

EMBED, LAYERS = 0, 1  # folded into the key: each part has numbers of its own


@dataclass(frozen=True)
class Decays:
    """Layers that mix a token with a decaying mean of those before it."""

    num_layers: int = 6
    sequence: int = 64
    vocabulary: int = 256
    dim: int = 32
    tied: bool = True

    @property
    def split(self) -> dict[str, int]:
        """The dims that local devices divide."""
        return {"blocks.up": -1, "blocks.down": -2}

    def init(self, key: jax.Array, *, layers: range, embed: bool, head: bool) -> dict[str, Any]:
        """Draw each part from the key and its own number, never from the cut."""
        params: dict[str, Any] = {}
        if embed or head:  # tied: the last stage has a copy of the table
            table = jax.random.normal(jax.random.fold_in(key, EMBED), (self.vocabulary, self.dim))
            params["embed"] = {"tokens": 0.1 * table}
        if layers:
            drawn = [self._layer(jax.random.fold_in(key, LAYERS + layer)) for layer in layers]
            params["blocks"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)
        if head:
            params["head"] = {"scale": jnp.ones(self.dim)}
        return params

    def _layer(self, key: jax.Array) -> dict[str, jax.Array]:
        up, down = jax.random.split(key)
        return {
            "decay": jnp.linspace(0.0, 4.0, self.dim),
            "up": 0.2 * jax.random.normal(up, (2 * self.dim, 4 * self.dim)),
            "down": 0.1 * jax.random.normal(down, (4 * self.dim, self.dim)),
        }

    def embed(self, params: Any, tokens: jax.Array, key: jax.Array | None) -> jax.Array:
        """Return the input of the first layer; `key` is for dropout, None turns it off."""
        del key
        return params["embed"]["tokens"][tokens]

    def block(self, layer: Any, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """Apply one layer, given its own slice of `params["blocks"]`."""
        del key
        kept = jax.nn.sigmoid(layer["decay"]).astype(x.dtype)
        steps = jnp.broadcast_to(kept, x.shape), (1 - kept) * x
        _, mean = jax.lax.associative_scan(
            lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), steps, axis=1
        )
        return x + jax.nn.silu(jnp.concatenate([x, mean], axis=-1) @ layer["up"]) @ layer["down"]

    def head(self, params: Any, x: jax.Array) -> jax.Array:
        """Return the logits in float32."""
        return ((x * params["head"]["scale"]) @ params["embed"]["tokens"].T).astype(jnp.float32)

    def loss(self, params: Any, x: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the cross-entropy, summed over all targets; those of -100 do not count."""
        log_p, counts = jax.nn.log_softmax(self.head(params, x)), targets != -100
        tokens = jnp.where(counts, targets, 0)[..., None]
        return -jnp.where(counts, jnp.take_along_axis(log_p, tokens, axis=-1)[..., 0], 0).sum()


if __name__ == "__main__":
    config = jaxpipe.load_config(sys.argv[1], sys.argv[2:])
    jaxpipe.train(config, model=Decays(), observe=print)
