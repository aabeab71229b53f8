"""What the search prices is what the compiled step runs, for dense layers and for experts."""

from pathlib import Path
from typing import Any

import pytest

from jaxpipe.baselines.autoshard.hlo import run_python

pytestmark = pytest.mark.slow

CASES: dict[str, dict[str, Any]] = {
    "dense on 4": {"model": "dense", "dp": 4},
    "dense on 8": {"model": "dense", "dp": 1, "op": 8},
    "experts on 2": {"model": "switch", "dp": 2},
    "experts on 8": {"model": "switch", "dp": 8, "expert_parallel": True},
}
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    found = run_python(
        "tests.programs.priced_collectives", [*CASES.values()], num_devices=8, path=ROOT
    )
    return dict(zip(CASES, found, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_priced_are_the_collectives_that_run(runs: dict[str, dict[str, Any]], name: str) -> None:
    assert runs[name]["priced"]
    assert runs[name]["compiled"] == runs[name]["priced"]


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_one_device(
    runs: dict[str, dict[str, Any]], name: str
) -> None:
    assert runs[name]["apart"] < 1e-5


@pytest.mark.parametrize("name", ["experts on 2", "experts on 8"])
def test_a_switch_layer_exchanges_tokens_four_times(
    runs: dict[str, dict[str, Any]], name: str
) -> None:
    # To the experts and back, and both once more in the backward.
    assert runs[name]["priced"]["all-to-all"][0] == 4
