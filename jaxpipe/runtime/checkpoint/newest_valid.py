"""Which checkpoint a run resumes from: the newest that is as it was saved, and loudly so."""

import logging
from pathlib import Path

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.checkpoint import Checkpoint, open_checkpoint, verify
from jaxpipe.runtime.checkpoint.folders import newest_first, step_of
from jaxpipe.runtime.checkpoint.manifest import corrupt

_log = logging.getLogger(__name__)


def newest_valid(run_folder: Path) -> Checkpoint:
    """Return the checkpoint of the highest step that verifies; one rank calls it.

    Every byte is read, and a folder has to hold the step that it is called by. A warning names
    each newer one that is broken, and says what is wrong with it; what such a folder holds stays
    there until the run comes by its step again.

    Raises:
        CheckpointError: there is none, or all are broken.
    """
    broken: list[CheckpointError] = []
    for folder in newest_first(run_folder):
        try:
            checkpoint = open_checkpoint(folder)
            _check_step(checkpoint)
            verify(checkpoint)
        except CheckpointError as error:
            _log.warning("the checkpoint %s is broken, an older one is tried: %s", folder, error)
            broken.append(error)
            continue
        if broken:
            _log.warning("the run goes on from step %d, in %s", checkpoint.step, folder)
        return checkpoint
    if broken:
        raise CheckpointError(
            f"`resume` must name a run with an intact checkpoint; all {len(broken)} of {run_folder}"
            f" are broken, the newest because: {broken[0]}"
        )
    raise CheckpointError(
        f"`resume` must name a run with a checkpoint; {run_folder} has none; start the run"
        " without `resume`, or name another folder"
    )


def _check_step(checkpoint: Checkpoint) -> None:
    if checkpoint.step != step_of(checkpoint.folder):
        raise corrupt(checkpoint.folder, f"it holds what was saved at step {checkpoint.step}")
