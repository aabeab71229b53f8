"""Which package each kind of tracker needs, and whether it is there."""

from collections.abc import Sequence
from importlib.util import find_spec

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.settings import TrackerKind

_MODULES = {
    TrackerKind.TENSORBOARD: "tensorboardX",
    TrackerKind.TRACKIO: "trackio",
    TrackerKind.WANDB: "wandb",
}


def check_installed(kinds: Sequence[TrackerKind]) -> None:
    """Check that these trackers can be imported; none of them is.

    Raises:
        ConfigError: one is not installed.
    """
    for kind in kinds:
        if find_spec(_MODULES[kind]) is None:
            raise ConfigError(
                f"a tracker is a package of its own: `run.trackers` has {kind}, and "
                f"{_MODULES[kind]} is not installed; pip install 'jaxpipe[{kind}]', or leave it out"
            )
