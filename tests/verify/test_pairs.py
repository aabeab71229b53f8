"""Each pair of settings of the table of compatibility is refused as it says, verified, or trained.

`experiments.verify_bugs.pairs` has run all of them; here are a few, and `make deep` has all again.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.table import read_csv
from experiments.verify_bugs.bypassed import COMPUTE, PRINCIPLE, names_of
from experiments.verify_bugs.bypassed import RESULTS as BYPASSED
from experiments.verify_bugs.pairs import (
    EXCLUDED,
    FAULT,
    PAIRS,
    REFUSED,
    RESULTS,
    VERIFIED,
    PairJudge,
    accepted,
)
from experiments.verify_bugs.tiny_runs import SAME
from jaxpipe.config.compatibility import EXCLUSIONS
from tests.config.chosen_settings import EXAMPLES

_NEAR = (
    ("`lora.rank` > 0", "`optimizer.sharded` = true", VERIFIED),
    ("`data.pack` = true", "`plan.cuts` unequal", VERIFIED),
    ("`run.transport` = shaped", "`run.trackers` given", SAME),
)


def test_pairs_are_accepted_unless_the_table_excludes_them() -> None:
    for first, second in PAIRS[::6]:  # the deep test below has all
        # An example has what its setting needs, which the other one may exclude.
        pair = accepted(first, second)
        assert frozenset((first, second)) not in EXCLUDED or pair is None, (first, second)


def test_the_results_are_those_of_the_table() -> None:
    # After a new row or a new setting, `python -m experiments.verify_bugs.pairs` runs its pairs.
    rows = {frozenset((row["first"], row["second"])): row for row in read_csv(RESULTS)}
    assert set(rows) <= set(map(frozenset, PAIRS))
    for pair, row in rows.items():
        assert row["outcome"] != FAULT, row
        assert pair not in EXCLUDED or row["outcome"] == REFUSED, row
        assert (row["table"] == "excluded") == (pair in EXCLUDED), row


def test_what_the_table_excludes_fails_or_is_refused_on_principle() -> None:
    # After a new row, `python -m experiments.verify_bugs.bypassed` runs it without the table.
    rows = {(row["first"], row["second"]): row for row in read_csv(BYPASSED)}
    assert set(rows) == set(map(names_of, EXCLUSIONS))
    assert {names for names, row in rows.items() if row["ranks"] == COMPUTE} == set(PRINCIPLE)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "outcome"), _NEAR)
def test_a_pair_computes_what_one_device_computes(
    first: str, second: str, outcome: str, tmp_path: Path
) -> None:
    assert PairJudge(tmp_path).outcome(first, second) == (outcome, "")


@pytest.mark.deep
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("setting", [name for name in EXAMPLES if name in dict(PAIRS)])
def test_all_pairs_compute_what_one_device_computes(setting: str, tmp_path: Path) -> None:
    earlier = list(EXAMPLES)[: list(EXAMPLES).index(setting)]
    options = [("--settings", setting), *(("--without", name) for name in earlier)]
    places = [("--results", f"{tmp_path}/pairs.csv"), ("--folder", f"{tmp_path}")]
    command = [sys.executable, "-m", "experiments.verify_bugs.pairs", *sum(options + places, ())]
    run = subprocess.run(command, env=os.environ, check=False, capture_output=True, timeout=2900)
    assert run.returncode == 0, run.stdout.decode()
