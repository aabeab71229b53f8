"""The Pareto front of `jaxpipe plan` as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from jaxpipe.errors import ConfigError
from jaxpipe.propose.options import SearchOptions

if TYPE_CHECKING:  # this imports numpy, which `--help` can do without
    from jaxpipe.propose.proposal import Proposal
    from jaxpipe.propose.worth import Worth


def check_pareto(options: SearchOptions, path: Path | None) -> None:
    """Check that a search keeps a front, and that it can be drawn into this file; None is none.

    Raises:
        ConfigError: it keeps none, or the ending of the file names no format.
        UserError: matplotlib is missing, or the file cannot be written.
    """
    from jaxpipe.pictures import check_format
    from jaxpipe.run.folder.output_files import check_output

    if path is None:
        return
    if not options.has_front:
        raise ConfigError(
            f"`--pareto` ({path}) draws seconds against dollars or energy, and `--objective` is "
            f"{options.objective}; set it to `dollars` or `energy`, or give a limit such as "
            "`--max-step-dollars`"
        )
    check_format(path, name="--pareto")
    check_output("--pareto", path)


def draw_pareto(options: SearchOptions, proposal: "Proposal", path: Path) -> None:
    """Draw the front of a proposal, and its plan."""
    from jaxpipe.pictures.pareto_picture import ParetoPoint, draw_front

    unit = "dollars" if options.counts_dollars else "watt-hours"

    def other(worth: "Worth | Proposal") -> float:
        value = worth.dollars if options.counts_dollars else worth.watt_hours
        assert value is not None, options
        return value

    front = [
        ParetoPoint(split.seconds, other(split), f"{sum(map(len, split.plan.groups))} devices")
        for split in proposal.front
    ]
    current = ParetoPoint(proposal.step_s, other(proposal), "")
    title = f"batch {proposal.plan.batch}, on {proposal.cluster.name}"
    draw_front(front, current, path, title=title, unit=unit)
