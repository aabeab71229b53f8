"""Each pair of settings of the table of compatibility is refused as it says, or verified."""

from pathlib import Path

import pytest

from tests.config.chosen_settings import EXAMPLES
from tests.config.pairs import EXCLUDED, PAIRS, PairVerifier, accepted, pairs_with
from tests.programs.report import report_of

_NUM_DEVICES = 8
"""Of a process: four ranks of two devices."""
_NEAR = (
    ("`lora.rank` > 0", "`optimizer.sharded` = true"),
    ("`data.pack` = true", "`plan.cuts` unequal"),
)


def test_pairs_are_accepted_unless_the_table_excludes_them() -> None:
    for first, second in PAIRS[::6]:  # the deep test below has all
        # An example has what its setting needs, which the other one may exclude.
        pair = accepted(first, second)
        assert frozenset((first, second)) not in EXCLUDED or pair is None, (first, second)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), _NEAR)
def test_a_pair_computes_what_one_device_computes(first: str, second: str) -> None:
    assert not PairVerifier().fault(first, second)


@pytest.mark.deep
@pytest.mark.parametrize("setting", [name for name in EXAMPLES if pairs_with(name)])
def test_all_pairs_compute_what_one_device_computes(setting: str, tmp_path: Path) -> None:
    (tmp_path / "setting.txt").write_text(setting, encoding="utf-8")
    report = report_of("verified_pairs", tmp_path, num_devices=_NUM_DEVICES)
    assert {other: fault for other, fault in report.items() if fault} == {}
