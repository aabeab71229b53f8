"""Where the checkpoints of a configuration are, and those of a run in its folder."""

import tomllib
from pathlib import Path

from jaxpipe.config.kept_inputs import CONFIG_FILE
from jaxpipe.config.read import Config
from jaxpipe.runtime.checkpoint import checkpoint_place
from jaxpipe.runtime.storage.object_folder import Folder, ObjectFolder


def place_of(config: Config) -> Folder:
    """Return where a run keeps its checkpoints.

    Raises:
        ConfigError: `checkpoint.folder` is a URL that cannot be opened here.
    """
    return checkpoint_place(Path(config.run.folder), config.checkpoint.folder)


def place_in(run: Path) -> Folder:
    """Return where the run in a folder keeps its checkpoints, by the configuration there.

    Raises:
        ConfigError: that is a URL that cannot be opened here.
    """
    try:
        tree = tomllib.loads((run / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # runs of older versions have none
        return run
    section = tree.get("checkpoint")
    url = section.get("folder") if isinstance(section, dict) else None
    return checkpoint_place(run, url if isinstance(url, str) else None)


def check_place(config: Config) -> None:
    """Check that this machine can write to the object storage of a run, if it has some.

    Raises:
        ConfigError: it cannot, or has no answer in time.
    """
    store = place_of(config)
    if isinstance(store, ObjectFolder):
        store.check_reachable()
