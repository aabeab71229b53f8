"""Check that a run that resumes reads on where its checkpoint stopped, in the same order."""

from collections.abc import Collection, Sequence
from typing import Any

from jaxpipe.config.read import Config
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.data import dataset_folder
from jaxpipe.runtime.data.dataset.record import read_record
from jaxpipe.runtime.data.order.position import changes_of_order, order_of
from jaxpipe.runtime.run_config import AllowedChange
from jaxpipe.runtime.storage.object_folder import Folder


def order_from(config: Config, folders: Sequence[Folder] = ()) -> dict[str, Any]:
    """Return the order of the samples of a configuration, as a checkpoint names it.

    `folders` are those of the datasets on this host, by default those configured.

    Raises:
        DataError: a dataset cannot be opened.
    """
    folders = folders or tuple(map(dataset_folder, config.data.folders))
    return order_of(
        seed=config.run.seed,
        sequence=config.train.sequence or config.model.sequence,
        pack=config.data.pack,
        checksums=[read_record(folder).train.checksum for folder in folders],
        weights=config.data.weights,
    )


def check_same_order(
    config: Config, checkpoint: Checkpoint, *, allowed: Collection[AllowedChange] = ()
) -> None:
    """Check that a run reads the samples that its checkpoint has not read yet; any batch may.

    A checkpoint of step 0 is an import, which has read none.

    Raises:
        CheckpointError: it would read samples in another order, which is not `allowed`.
        DataError: a dataset cannot be opened.
    """
    if checkpoint.step == 0 or AllowedChange.DATA in allowed:
        return
    changes = changes_of_order(checkpoint.metadata, order_from(config))
    for field, (old, new) in changes.items():
        if field != "data.sources":
            raise _refusal(checkpoint, field, _in_toml(new), old=_in_toml(old))
        name = field if config.data.folder is None else "data.folder"
        folders = f"{', '.join(config.data.folders):.200}"
        raise _refusal(checkpoint, name, folders, old="in content and weights")


def _refusal(checkpoint: Checkpoint, field: str, new: str, *, old: str) -> CheckpointError:
    return CheckpointError(
        f"`{field}` ({new}) must be as in the checkpoint {checkpoint.folder}, {old}: the run would "
        "skip or repeat samples; set it to that, or begin the new order at its first sample with "
        f"`--allow-changed {AllowedChange.DATA}`"
    )


def _in_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
