"""How many parameters of each part of a model are trained; imports jax, allocates nothing."""

from dataclasses import dataclass
from math import prod
from typing import Any

import jax

from jaxpipe.runtime.checkpoint import shapes
from jaxpipe.runtime.stage.model import Model
from jaxpipe.runtime.stage.trained import is_trained, trained


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCounts:
    """Numbers of parameters: of the embedding, each layer, the head, and of the table of tokens.

    `tokens` are those among the embedding that a tied head shares.
    """

    embed: int
    layer: int
    head: int
    tokens: int

    def of_stage(self, *, layers: int, embed: bool, head: bool, tied: bool) -> int:
        """Return the number in a stage; with a tied head and no embedding it has the table."""
        num_trained = layers * self.layer + embed * self.embed + head * self.head
        return num_trained + self.tokens * (tied and head and not embed)


def all_parameters(model: Model) -> PartCounts:
    """Return the numbers of all parameters, adapters included."""
    return _counts(_shapes(model))


def trained_parameters(model: Model) -> PartCounts:
    """Return the numbers of those with a gradient.

    Where some layers of a parameter are trained, all of its layers count: they have gradients.
    """
    return _counts(trained(model, _shapes(model)))


def frozen_rows(model: Model) -> tuple[int, ...]:
    """Return for each layer how many parameters are frozen in leaves that other layers train."""
    leaves = trained(model, _shapes(model))
    return tuple(
        sum(
            prod(shape)
            for name, shape in shapes(leaves, first_layer=layer).items()
            if name.startswith("blocks.") and not is_trained(model, name)
        )
        for layer in range(model.num_layers)
    )


def _shapes(model: Model) -> dict[str, Any]:
    return jax.eval_shape(
        lambda: model.init(jax.random.key(0), layers=range(1), embed=True, head=True)
    )


def _counts(shapes: dict[str, Any]) -> PartCounts:
    def of(tree: Any) -> int:
        return sum(prod(leaf.shape) for leaf in jax.tree.leaves(tree))

    embed = shapes.get("embed", {})
    return PartCounts(
        embed=of(embed),
        layer=of(shapes["blocks"]),
        head=of(shapes.get("head", {})),
        tokens=of(embed.get("tokens", {})),
    )
