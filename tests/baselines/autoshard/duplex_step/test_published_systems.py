"""Published systems for mixtures of experts compute what one device computes, and as they say."""

from pathlib import Path
from typing import Any

import pytest

from jaxpipe.baselines.autoshard.hlo import run_python

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
TIGHT = {"capacity_factor": 0.5, "experts_per_token": 2}
CASES: dict[str, dict[str, Any]] = {
    "ddp": {"system": "ddp", "bucket_bytes": 4096},
    "zero3": {"system": "zero3"},
    "gshard": {"system": "gshard", "fields": TIGHT},
    "deepspeed-moe": {
        "system": "deepspeed-moe",
        "fields": {**TIGHT, "routing_groups": 4},
        "other": {"routing_groups": 0},
    },
    "deepspeed-moe with room": {
        "system": "deepspeed-moe",
        "fields": {"capacity_factor": 8.0, "routing_groups": 4},
        "reference": {"routing_groups": 0},
    },
    "fastmoe": {
        "system": "fastmoe",
        "fields": {"capacity_factor": 8.0},
        "reference": {"dispatch": "ragged"},
    },
}


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    cases = [{"devices": 4, **case} for case in CASES.values()]
    found = run_python("tests.programs.published_systems", cases, num_devices=4, path=ROOT)
    return dict(zip(CASES, found, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_loss_and_every_gradient_are_those_of_one_device(
    runs: dict[str, dict[str, Any]], name: str
) -> None:
    assert runs[name]["apart"] < 1e-5


def test_tokens_of_a_device_compete_in_deepspeed(runs: dict[str, dict[str, Any]]) -> None:
    # Other tokens are dropped than by sequence, so that gradients differ.
    assert runs["deepspeed-moe"]["apart_from_other"] > 1e-4


@pytest.mark.parametrize("name", ["gshard", "deepspeed-moe", "fastmoe"])
def test_tokens_are_exchanged_twice_each_way(runs: dict[str, dict[str, Any]], name: str) -> None:
    assert runs[name]["collectives"]["all_to_all"] == 4


def test_buckets_are_as_large_as_said(runs: dict[str, dict[str, Any]]) -> None:
    whole, buckets = runs["ddp"]["whole"], runs["ddp"]["buckets"]
    assert sum(whole) == sum(buckets)
    # All gradients together; single ones may exceed a bucket, as those of the experts do.
    assert max(whole) > 10 * 4096
    assert max(buckets) == 4 * 8 * 16 * 64
    assert sum(each > 4096 for each in buckets) <= 6
