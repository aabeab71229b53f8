"""Where the checkpoints of a configuration are, and those of a run in its folder."""

from pathlib import Path

from jaxpipe.config.kept_inputs import CONFIG_FILE
from jaxpipe.config.read import MOST_TOML_BYTES, Config
from jaxpipe.errors import ConfigError
from jaxpipe.foreign_file import read_text, reason_of
from jaxpipe.runtime.checkpoint import checkpoint_place
from jaxpipe.runtime.storage.object_folder import Folder, ObjectFolder
from jaxpipe.topo.toml_text import parse_toml


def place_of(config: Config) -> Folder:
    """Return where a run keeps its checkpoints.

    Raises:
        ConfigError: `checkpoint.folder` is a URL that cannot be opened here.
    """
    return checkpoint_place(Path(config.run.folder), config.checkpoint.folder)


def place_in(run: Path) -> Folder:
    """Return where the run in a folder keeps its checkpoints, by the configuration there.

    Raises:
        ConfigError: the configuration cannot be read, or names a URL that cannot be opened here.
    """
    try:
        tree = parse_toml(read_text(run / CONFIG_FILE, most_bytes=MOST_TOML_BYTES, inside=True))
    except FileNotFoundError:  # runs of older versions have none
        return run
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"`{CONFIG_FILE}` must be the configuration of the run in {run}: {reason_of(error)}; "
            "name another run, or put its file back"
        ) from error
    section = tree.get("checkpoint")
    url = section.get("folder") if isinstance(section, dict) else None
    return checkpoint_place(run, url if isinstance(url, str) else None)


def check_outlives(config: Config) -> None:
    """Check that checkpoints are where other processes find them; those of `memory://` are not.

    Ranks that are threads of one process may have them there.

    Raises:
        ConfigError: each process would have checkpoints of its own, which end with it.
    """
    store = place_of(config)
    if isinstance(store, ObjectFolder) and store.is_of_process:
        raise ConfigError(
            f"`checkpoint.folder` must be storage that all ranks share, is {store.url!r:.80}: each "
            "process has a memory of its own; leave it out for checkpoints in the folder of the run"
        )


def check_place(config: Config) -> None:
    """Check that this machine can write to the object storage of a run, if it has some.

    Raises:
        ConfigError: it cannot, or has no answer in time.
    """
    store = place_of(config)
    if isinstance(store, ObjectFolder):
        store.check_reachable()
