"""Parts of sequences on several devices give the loss and gradients of whole ones on one."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime.stage.context import in_order, zigzag
from tests.programs.parted import ATTENTION, RESIDUALS, STAGES
from tests.programs.report import report_of

ROUNDING = 5e-6


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what `tests.programs.parted` has found."""
    return report_of("parted", tmp_path_factory.mktemp("parted"), num_devices=4)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "cases"), [("attention", ATTENTION), ("stage", STAGES)])
def test_loss_and_gradients_are_those_of_one_device(
    report: dict[str, Any], part: str, cases: list[tuple[Any, ...]]
) -> None:
    errors = report[part]
    assert len(errors) == len(cases)
    assert max(errors.values()) <= ROUNDING, errors


@pytest.mark.slow
def test_a_device_keeps_its_part_of_all_residuals(report: dict[str, Any]) -> None:
    assert len(report["held"]) == len(RESIDUALS)
    for name, (of_device, in_all) in report["held"].items():
        num_parts = 4 if "context 4" in name else 2
        # The angles of rotary positions, a few numbers, are on all devices.
        assert in_all <= num_parts * of_device <= 1.01 * in_all, name
        assert "gpt" not in name or num_parts * of_device == in_all


# Few of them: each shape is compiled for a third of a second.
@pytest.mark.parametrize(
    ("num_parts", "piece", "batch"), [(1, 1, 1), (2, 3, 1), (3, 1, 2), (5, 2, 3)]
)
def test_parts_have_an_early_and_a_late_piece(num_parts: int, piece: int, batch: int) -> None:
    tokens = jnp.arange(batch * 2 * num_parts * piece).reshape(batch, -1)
    found = zigzag(tokens, num_parts)
    np.testing.assert_array_equal(in_order(found, num_parts), tokens)
    for part, mine in enumerate(np.split(np.asarray(found[0]), num_parts)):
        first, last = part * piece, (2 * num_parts - 1 - part) * piece
        assert mine.tolist() == [*range(first, first + piece), *range(last, last + piece)]
