"""Microbatches and duplexes: as one device, with gathers and reductions as without them."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxpipe.baselines.autoshard.hlo import run_python
from jaxpipe.baselines.autoshard.spmd import NamedStep, accumulated, shard_program
from jaxpipe.baselines.autoshard.strategy import MeshShape, Strategy, parse_sharding
from jaxpipe.errors import PlanError

ROOT = Path(__file__).parents[4]
CASES: dict[str, dict[str, Any]] = {
    "whole": {"model": "dense", "dp": 2, "microbatches": 1},
    "in 4": {"model": "dense", "dp": 2, "microbatches": 4},
    "zero 3": {"model": "dense", "dp": 2, "microbatches": 1, "zero": "parameters"},
    "zero 3, duplex": {
        "model": "dense",
        "dp": 2,
        "microbatches": 2,
        "zero": "parameters",
        "duplex": True,
    },
    "experts": {"model": "switch", "dp": 2, "microbatches": 1},
    "experts, duplex": {"model": "switch", "dp": 2, "microbatches": 2, "duplex": True},
}
# The scales of three norms are read by the forward and by the part of the backward that is computed
# again, behind an optimization barrier. XLA of jax 0.10 gathers them once in a step; newer ones
# respect the barrier, and gather them again in the backward: once for the batch, or for each half.
IS_MERGED = jax.__version_info__ < (0, 11)
GATHERED_PER_HALF = [0, 0] if IS_MERGED else [3, 3 * 16 * 4]
"""Gathers, and their bytes, that a second half adds."""


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    found = run_python("tests.programs.microbatches", [*CASES.values()], num_devices=2, path=ROOT)
    return dict(zip(CASES, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_loss_and_every_gradient_are_those_of_one_device(
    runs: dict[str, dict[str, Any]], name: str
) -> None:
    assert runs[name]["loss"] > 1
    assert runs[name]["apart"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("divided", "whole"),
    [("in 4", "whole"), ("zero 3, duplex", "zero 3"), ("experts, duplex", "experts")],
)
def test_gathers_and_reductions_are_those_of_one_batch(
    runs: dict[str, dict[str, Any]], divided: str, whole: str
) -> None:
    got, wanted = runs[divided]["compiled"], runs[whole]["compiled"]
    reductions = [
        [each.get(kind, [0, 0]) for kind in ("all-reduce", "reduce-scatter")]
        for each in (got, wanted)
    ]
    counts, sizes = ([[pair[i] for pair in each] for each in reductions] for i in range(2))
    assert counts[0] == counts[1]
    # What one batch all-reduces and slices is scattered here: of the bytes only the sum is equal.
    assert sum(sizes[0]) == sum(sizes[1])
    # Gathers of tokens, which the search of the experts has chosen, are those of two halves.
    gathers = [each.get("all-gather", [0, 0]) for each in (got, wanted)]
    if whole == "zero 3":
        gathers[1] = [sum(pair) for pair in zip(gathers[1], GATHERED_PER_HALF, strict=True)]
        assert gathers[0] == gathers[1]
    else:
        assert gathers[0][1] == gathers[1][1]


@pytest.mark.slow
def test_each_half_exchanges_its_own_tokens(runs: dict[str, dict[str, Any]]) -> None:
    whole, halves = (
        runs[name]["compiled"]["all-to-all"] for name in ("experts", "experts, duplex")
    )
    assert halves == [2 * whole[0], whole[1]]


def step(microbatches: int = 2, *, marked: bool = True, duplex: bool = False) -> NamedStep:
    def run(state: jax.Array, x: jax.Array) -> jax.Array:
        total = jnp.sum(x, axis=0)
        return state - (accumulated(total) if marked else total)

    return NamedStep(
        run=run,
        names=("state", "x"),
        result_names=("state",),
        microbatches=microbatches,
        duplex=duplex,
    )


def by_rows() -> Strategy:
    return Strategy(
        name="rows",
        mesh=MeshShape(dp=2, op=1),
        arguments={"state": parse_sharding("R"), "x": parse_sharding("S0R")},
        results={"state": parse_sharding("R")},
    )


STATE, X = jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((8, 3), jnp.float32)


def test_a_sum_is_reduced_after_it_was_added_up() -> None:
    sharded = shard_program(step(), (STATE, X), by_rows())
    partial = {
        each.name: str(choice)
        for each, choice in zip(sharded.program.operators, sharded.choices, strict=True)
    }
    assert partial == {"reduce_sum": "S0R->R", "name": "R->R +0", "sub": "R,R->R"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"microbatches": 3}, r"`microbatches` must divide the batch: 3 does not divide 8"),
        ({"marked": False}, "'a result' reads the batch past all marks"),
    ],
)
def test_what_cannot_be_divided_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        shard_program(step(**options), (STATE, X), by_rows())


def test_a_duplex_has_two_halves() -> None:
    with pytest.raises(PlanError, match=r"`microbatches` .4. must be 2 with"):
        step(4, duplex=True)
    with pytest.raises(PlanError, match="`microbatches` must be at least 1, is 0"):
        step(0)
