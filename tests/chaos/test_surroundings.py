"""One trial of each cheap fault around a run: its folder, its start, and its launcher."""

from pathlib import Path

import pytest

from jaxpipe.chaos.folder import FOLDER
from jaxpipe.chaos.harness.trial import Family, Setup
from jaxpipe.chaos.orphan import ORPHAN
from jaxpipe.chaos.start import START

pytestmark = [
    pytest.mark.mpi,
    # A worker may have JAX's threads.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]
NO_ACCESS, SIGNALLED, NO_MPIRUN = 1, 0, 0
"""The seeds of these trials."""


@pytest.mark.parametrize(
    ("family", "seed", "name"),
    [
        (FOLDER, NO_ACCESS, "no access"),
        pytest.param(START, SIGNALLED, "SIGTERM", marks=pytest.mark.slow),
        pytest.param(ORPHAN, NO_MPIRUN, "kill -9 of mpirun", marks=pytest.mark.slow),
    ],
)
def test_a_trial_passes(
    family: Family, seed: int, name: str, tmp_path: Path, dataset: Path
) -> None:
    setup = Setup(folder=tmp_path, dataset=dataset, num_trials=1, seed=seed)
    (trial,) = family.trials(setup)
    assert trial.name.startswith(name)
    assert trial.passed, trial.why
