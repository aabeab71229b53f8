"""The wheel of this tree, in an environment of its own and in projects of other people."""

from pathlib import Path

import pytest

from experiments.first_hour.sandbox import Sandbox
from experiments.first_hour.trial import holds
from experiments.first_hour.wheel import Environment, wheel_trials

pytestmark = [pytest.mark.slow, pytest.mark.mpi]
ROOT = Path(__file__).parents[3]
OTHERWISE = (
    "`python -m jaxpipe` in a project",
    "the wheel as a library of a project with its own",
)
"""Trials of what the others show with a command, or without the project's own packages."""
NAMES = tuple(
    pytest.param(trial.what, marks=[pytest.mark.deep] if trial.what.startswith(OTHERWISE) else [])
    for trial in wheel_trials(Environment(Path()))
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("wheel"))
    made.make()
    return made


def test_it_claims_one_name_and_holds_every_file(environment: Environment) -> None:
    packed = {name for name in environment.files() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in packed} == {"jaxpipe"}
    assert "jaxpipe/py.typed" in packed
    there = {
        str(Path(*under, path.relative_to(ROOT)))
        for folder, under in (("jaxpipe", ()), ("models", ("jaxpipe",)), ("topo", ("jaxpipe",)))
        for path in (ROOT / folder).rglob("*")  # which follows no links
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == there


@pytest.mark.parametrize("name", NAMES)
def test_it_works_next_to_packages_of_the_same_names(
    environment: Environment, name: str, tmp_path: Path
) -> None:
    (trial,) = (each for each in wheel_trials(environment) if each.what == name)
    ended = trial.run(Sandbox(tmp_path, limit_s=240.0))
    assert holds(trial, ended), ended.out[-1000:] + ended.err[-1000:]
