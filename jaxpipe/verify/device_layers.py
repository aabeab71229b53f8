"""All layers of a model on one device: what enters each, and what crosses each boundary.

::

    equal layers           scan of:  x ──► crosses a boundary ──► + offset ──► layer
    at a bottleneck        x ──► narrow ──► crosses ──► + offset ──► widen ──► layer
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from jaxpipe.runtime.stage.model import (
    Bottlenecked,
    Model,
    Parameters,
    bottlenecks_of,
    equal_layers,
    model_of_layer,
)


def through_layers(
    model: Model,
    params: Parameters,
    start: tuple[Any, Any],
    key: Any,
    crossed: Callable[..., Any],
    offsets: dict[int, Any],
) -> tuple[Any, dict[int, Any], Any]:
    """Return the last layer's output, what enters each layer, and what layers add to the loss.

    The `start` is the embedding of the inputs, and the inputs. What enters a layer is the value
    before it has `crossed`; the `offsets` are added behind.
    """
    x, inputs = start
    ranks, total, inside = bottlenecks_of(model), 0.0, {}

    def layer(of_layer: Model, x: Any, given: Any) -> tuple[Any, Any]:
        weights, number, offset, boundary = given
        read = crossed(x, layer=boundary) + offset
        drop = None if key is None else jax.random.fold_in(key, number)
        output = of_layer.block(weights, read, drop)
        output, added = output if isinstance(output, tuple) else (output, 0.0)
        return output, (x, added)

    for first, end in _parts(model):
        boundaries = numbers = jnp.arange(first, end)
        more, narrow = [offsets[number] for number in range(first, end)], {}
        if first in ranks:
            assert isinstance(model, Bottlenecked), model
            narrow = {first: model.narrow(params, x, first)}
            read = crossed(narrow[first], layer=first) + offsets[first]
            x = model.widen(params, read, inputs, first)
            # It has crossed: no boundary has the number -1.
            boundaries, more[0] = numbers.at[0].set(-1), jnp.zeros_like(x)
        blocks = jax.tree.map(lambda leaf, a=first, b=end: leaf[a:b], params["blocks"])
        stacked = jnp.stack(jnp.broadcast_arrays(*more))
        step = partial(layer, model_of_layer(model, first))
        x, (before, added) = jax.lax.scan(step, x, (blocks, numbers, stacked, boundaries))
        inside |= dict(zip(range(first, end), before, strict=True)) | narrow
        total += jnp.sum(added)
    return x, inside, total


def _parts(model: Model) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of the layers that are equal and that no bottleneck parts."""
    edges = (0, *sorted(bottlenecks_of(model)), model.num_layers)
    for start, stop in pairwise(edges):
        for layers in equal_layers(model, range(start, stop)):
            yield layers.start, layers.stop
