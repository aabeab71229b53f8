"""A sharded step computes what the step on one device computes, with the collectives foreseen."""

from pathlib import Path
from typing import Any

import pytest

from jaxpipe.baselines.autoshard.hlo import run_python

pytestmark = pytest.mark.slow

CASES: dict[str, dict[str, Any]] = {
    "megatron": {"model": "alpa", "dp": 1, "op": 4},
    "megatron, again": {"model": "alpa", "dp": 1, "op": 4, "remat": True},
    "megatron on 2": {"model": "gpt", "dp": 1, "op": 2},
    "data": {"model": "alpa", "dp": 4, "op": 1, "dtype": "float16"},
    "zero 1": {"model": "alpa", "dp": 2, "op": 1, "zero": "optimizer"},
    "zero 2": {"model": "alpa", "dp": 2, "op": 2, "zero": "gradients"},
    "zero 3": {"model": "alpa", "dp": 2, "op": 2, "zero": "parameters", "remat": True},
    "zero 3 of gpt": {"model": "gpt", "dp": 4, "op": 1, "zero": "parameters"},
    "zero 2, combined by XLA": {
        "model": "alpa",
        "dp": 2,
        "op": 2,
        "zero": "gradients",
        "combines": True,
    },
    "by the compiler": {"model": "alpa", "dp": 2, "op": 2, "by_compiler": True},
    "found": {"model": "alpa", "dp": 2, "op": 2, "found": True},
}

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    found = run_python("tests.programs.whole_runs", [*CASES.values()], num_devices=4, path=ROOT)
    return dict(zip(CASES, found, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_as_on_one_device(runs: dict[str, dict[str, Any]], name: str) -> None:
    # Losses of about 3.5 and parameters of about 1, in formats of 11 and of 24 bits.
    bound = 4e-3 if CASES[name].get("dtype") == "float16" else 5e-6
    assert runs[name]["apart"] < bound


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        # Of a layer 2 forward and 2 backward; embedding, maximum and sum of the loss, head.
        ("megatron", (8, 0, 0)),
        ("megatron, again", (10, 0, 0)),
        # The number of targets, the loss and LayerNorms in float32, all else in float16.
        ("data", (3, 0, 0)),
        ("zero 1", (2, 1, 0)),
        ("zero 2", (10, 1, 1)),
    ],
)
def test_collectives(
    runs: dict[str, dict[str, Any]], name: str, counts: tuple[int, int, int]
) -> None:
    kinds = ("allreduce", "allgather", "reducescatter")
    assert tuple(runs[name]["counts"][kind] for kind in kinds) == counts


def test_a_compiler_that_combines_gets_a_collective_for_each_array(
    runs: dict[str, dict[str, Any]],
) -> None:
    # XLA for CPUs combines none of them.
    together, apart = (runs[name]["counts"] for name in ("zero 2", "zero 2, combined by XLA"))
    assert together["allgather"] == together["reducescatter"] == 1
    assert apart["allgather"] == apart["reducescatter"] > 10
    assert apart["allreduce"] == together["allreduce"]


def test_a_found_strategy_says_how_each_operator_is_computed(
    runs: dict[str, dict[str, Any]],
) -> None:
    assert runs["found"]["num_choices"] > 100
    assert runs["found"]["counts"]["num_comm"] > 0
