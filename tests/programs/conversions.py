"""Convert an array between all layouts on forced devices, and back: JSON in and out.

The backward of a conversion is its conjugate: of a gather a scatter of sums, of an all-to-all the
one in the other direction, of an all-reduce an all-reduce.
"""

import json
import sys
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.baselines.autoshard.spmd import NamedStep, placed, sharded_step
from jaxpipe.baselines.autoshard.strategy import (
    MeshShape,
    Strategy,
    jax_mesh,
    parse_choice,
    parse_sharding,
)

LAYOUTS = ("RRR", "S0RR", "RS0R", "RRS0")
ENDINGS = {"RR": "RS0,S0R->RR +0", "S0R": "RS0,S0R->S0R +0>0", "RS0": "RS0,S0R->RS0 +0>1"}
"""How partial sums of a product become each layout."""
SHAPE = (8, 16, 24)


def main() -> None:
    """Convert on each number of devices of the request."""
    print(json.dumps([_largest(size) for size in json.loads(sys.stdin.read())]))  # noqa: T201


def _run(x: Any, left: Any, right: Any) -> Any:
    moved = {f"{a}_{b}": -x[a] for a, b in product(LAYOUTS, repeat=2)}
    # One product for each ending: `dict.fromkeys` would share one.
    return {"moved": moved, "summed": {each: left @ right for each in ENDINGS}}  # noqa: C420


def _largest(num_devices: int) -> list[float]:
    """Return the largest differences from NumPy: of results, and of gradients."""
    random = np.random.default_rng(0)
    x = {each: random.normal(size=SHAPE).astype(np.float32) for each in LAYOUTS}
    left, right = (random.normal(size=(16, 16)).astype(np.float32) for _ in range(2))
    arguments = (x, left, right)
    # Negations come first in the list of operators, then a product for each ending.
    first = len(LAYOUTS) ** 2
    strategy = Strategy(
        name="conversions",
        mesh=MeshShape(dp=num_devices, op=1),
        arguments={
            **{f"x.{each}": parse_sharding(each) for each in LAYOUTS},
            "left": parse_sharding("RS0"),
            "right": parse_sharding("S0R"),
        },
        results={
            **{f"y.moved.{a}_{b}": parse_sharding(b) for a, b in product(LAYOUTS, repeat=2)},
            **{f"y.summed.{each}": parse_sharding(each) for each in ENDINGS},
        },
        operators={
            first + place: parse_choice(text) for place, text in enumerate(ENDINGS.values())
        },
    )
    step = NamedStep(run=_run, names=("x", "left", "right"), result_names=("y",))
    sharded = sharded_step(step, arguments, strategy, donated=())
    lying = jax.device_put(
        arguments,
        placed(arguments, strategy.arguments, jax_mesh(strategy.mesh), names=step.names),
    )
    weights = jax.tree.map(
        lambda leaf: random.normal(size=leaf.shape).astype(np.float32),
        jax.eval_shape(_run, *arguments),
    )

    def weighted(*trees: Any) -> tuple[Any, Any]:
        results = sharded(*trees)
        parts = jax.tree.map(lambda a, b: jnp.sum(a * b), results, weights)
        return sum(jax.tree.leaves(parts)), results

    both = jax.jit(jax.value_and_grad(weighted, argnums=(0, 1, 2), has_aux=True))
    (_, results), gradients = both(*lying)
    return [
        _apart(results, _expected(arguments)),
        _apart(gradients, _conjugates(arguments, weights)),
    ]


def _expected(arguments: Any) -> Any:
    x, left, right = arguments
    moved = {f"{a}_{b}": -x[a] for a, b in product(LAYOUTS, repeat=2)}
    return {"moved": moved, "summed": dict.fromkeys(ENDINGS, left @ right)}


def _conjugates(arguments: Any, weights: Any) -> Any:
    _, left, right = arguments
    moved, summed = weights["moved"], sum(weights["summed"].values())
    of_x = {a: -sum(moved[f"{a}_{b}"] for b in LAYOUTS) for a in LAYOUTS}
    return of_x, summed @ right.T, left.T @ summed


def _apart(got: Any, expected: Any) -> float:
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - b))) for a, b in pairs)


if __name__ == "__main__":
    main()
