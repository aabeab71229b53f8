"""Begin a run with given parameters: a checkpoint of step 0, for `--resume`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, latest, write_shard


def begin_run(folder: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Path:
    """Commit a checkpoint of step 0 with these parameters and zero moments; return its folder.

    Raises:
        CheckpointError: the folder holds checkpoints already, or cannot be written.
    """
    try:
        existing = latest(folder)
    # The normal case: there is no checkpoint to return.
    except CheckpointError:
        partial = begin_checkpoint(folder, step=0)
        entries = list(write_shard(partial, "parameters", tensors))
        # AdamW at step 0: a resumed run expects moments, and its bias correction starts with zeros.
        for moment in ("mu", "nu"):
            zeros = {f"{moment}.{name}": np.zeros_like(each) for name, each in tensors.items()}
            entries += write_shard(partial, moment, zeros)
        return commit(partial, entries, metadata)
    raise CheckpointError(
        f"a run does not overwrite another: {folder} holds {existing.name}; name another folder"
    )
