"""Hand-over from a run that stops for a new plan to the attempt that continues with it."""

from pathlib import Path

from jaxpipe.config import Config
from jaxpipe.errors import ConfigError
from jaxpipe.plan import Replan
from jaxpipe.runtime.config import LinkDetail

REPLAN_FILES = ("drift-cluster.toml", "drift-plan.toml")
"""The corrected cluster, and the new plan for it, in the folder of the run."""

_REQUEST = "replan.requested"


def replan_settings(folder: Path) -> tuple[str, ...]:
    """Return the settings with which a configuration trains by the new plan in a run folder."""
    cluster, plan = (folder / name for name in REPLAN_FILES)
    return (f"plan.cluster={cluster}", f"plan.file={plan}")


def check_replan(config: Config, *, is_supervised: bool) -> None:
    """Check that a run that is to continue with new plans can do so.

    Raises:
        ConfigError: `plan.replan` is auto, and nothing would start the run again, or tell it of
            slow links.
    """
    if config.plan.replan is not Replan.AUTO:
        return
    if not is_supervised:
        raise ConfigError(
            f"only `jaxpipe run` starts a run again with a new plan: `plan.replan` is "
            f"{config.plan.replan}; use that command, or set it to {Replan.ASK}"
        )
    if config.trace.links is LinkDetail.NONE:
        raise ConfigError(
            f"slow links are found in reports of links: `plan.replan` is {config.plan.replan}, and "
            f"`trace.links` is {config.trace.links}; set it to {LinkDetail.REGIONS}"
        )


def request_replan(folder: Path) -> None:
    """Note that the run stops in order to continue with the new plan."""
    (folder / _REQUEST).touch()


def take_request(folder: Path) -> bool:
    """Return whether a run has stopped for the new plan in its folder, and forget it."""
    path = folder / _REQUEST
    is_there = path.exists()
    path.unlink(missing_ok=True)
    return is_there
