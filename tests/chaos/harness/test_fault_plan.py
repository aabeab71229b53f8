"""Orders reach the ranks, and are carried out once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpipe.chaos.families import FAMILIES, families
from jaxpipe.chaos.harness.fault_plan import (
    FaultPlan,
    Kill,
    Struck,
    note_process,
    note_struck,
    process_of,
    read_fault_plan,
    read_struck,
    write_fault_plan,
)
from jaxpipe.chaos.harness.kill_points import Point
from jaxpipe.chaos.kill import target
from jaxpipe.errors import ConfigError


@pytest.mark.parametrize(
    "orders",
    [
        FaultPlan(),
        FaultPlan(kill=Kill(point=Point.PRUNE, victim=3, step=2)),
        FaultPlan(compile_s=10.0),
    ],
)
def test_orders_are_read_as_they_were_written(tmp_path: Path, orders: FaultPlan) -> None:
    config = tmp_path / "config.toml"
    write_fault_plan(config, orders)
    assert read_fault_plan(config) == orders


def test_it_happens_once(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    first = Struck(victim=1, doing="forward 0", at_s=1.5)
    assert read_struck(config) is None
    assert note_struck(config, first)
    assert not note_struck(config, Struck(victim=2, doing="update", at_s=2.5))
    assert read_struck(config) == first


def test_a_rank_is_found_by_its_process(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    note_process(config, rank=2)
    assert process_of(config, rank=2) == os.getpid()


def test_a_hundred_trials_kill_each_rank_at_each_point() -> None:
    targets = [target(seed) for seed in range(1000, 1100)]
    named = {(each.victim, each.point) for each in targets if each.point is not None}
    assert named == {(rank, point) for rank in range(4) for point in Point}
    others = [each for each in targets if each.point is None]
    assert len(others) == 100 - len(named)
    assert {each.victim for each in others} == set(range(4))


def test_families_are_chosen_by_name() -> None:
    assert families(()) == FAMILIES
    with pytest.raises(ConfigError, match=r"`FAMILY` .* is 'kil'; choose from kill, stop, halt"):
        families(("stop", "kil"))


def test_without_psutil_one_line_says_how_to_get_it() -> None:
    code = "import sys; sys.modules['psutil'] = None; from jaxpipe.cli.main import main; "
    command = [sys.executable, "-c", code + "sys.exit(main(['chaos']))"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert said.stderr.startswith("jaxpipe: ")
    assert said.stderr.endswith("pip install 'jaxpipe[chaos]'\n")
    assert said.stderr.count("\n") == 1
