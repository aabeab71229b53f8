"""Every conversion between layouts, and its conjugate in the backward, against NumPy."""

from pathlib import Path

import pytest

from jaxpipe.baselines.autoshard.hlo import run_python

ROOT = Path(__file__).parents[4]
SIZES = [2, 4, 8]


@pytest.fixture(scope="module")
def apart() -> dict[int, list[float]]:
    found = run_python("tests.programs.conversions", SIZES, num_devices=8, path=ROOT)
    return dict(zip(SIZES, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", SIZES)
def test_conversions_and_conjugates(apart: dict[int, list[float]], num_devices: int) -> None:
    values, gradients = apart[num_devices]
    assert values < 1e-5
    assert gradients < 5e-5  # sums of 48 products of about 1
