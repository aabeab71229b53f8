"""XLA for GPUs overlaps the all-to-alls of a duplex with products; no GPU is needed to see it."""

from pathlib import Path
from typing import Any

import pytest

from jaxpipe.baselines.autoshard.hlo import has_gpu_compiler, run_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not has_gpu_compiler(), reason="the extra `aot` is not installed"),
]
ROOT = Path(__file__).parents[4]
TARGETS = ("v100", "h200")


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[str, bool], dict[str, Any]]:
    cases = [{"target": target, "duplex": duplex} for target in TARGETS for duplex in (False, True)]
    found = run_python("tests.programs.duplex_overlap", cases, num_devices=8, path=ROOT)
    return {(case["target"], case["duplex"]): each for case, each in zip(cases, found, strict=True)}


# On V100s XLA's scheduler leaves nothing for one of the eight.
@pytest.mark.parametrize(("target", "num_hidden"), [("v100", 7), ("h200", 8)])
def test_the_all_to_alls_of_a_duplex_have_products_beside_them(
    compiled: dict[tuple[str, bool], dict[str, Any]], target: str, num_hidden: int
) -> None:
    products = compiled[target, True]["products"]
    # Four of each half, all of them asynchronous.
    assert len(products) == compiled[target, True]["all_to_alls"] == 8
    assert sum(map(bool, products)) >= num_hidden


@pytest.mark.parametrize("target", TARGETS)
def test_a_duplex_has_no_more_all_reduces(
    compiled: dict[tuple[str, bool], dict[str, Any]], target: str
) -> None:
    assert compiled[target, True]["all_reduces"] == compiled[target, False]["all_reduces"]


@pytest.mark.parametrize("target", TARGETS)
def test_without_it_nothing_can_overlap(
    compiled: dict[tuple[str, bool], dict[str, Any]], target: str
) -> None:
    products = compiled[target, False]["products"]
    assert len(products) == 4
    assert sum(map(bool, products)) < 4
