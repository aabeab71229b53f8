"""What a search for a new plan has found, and its files in the folder of a run."""

from dataclasses import dataclass
from pathlib import Path

CLUSTER_FILE, PLAN_FILE = "drift-cluster.toml", "drift-plan.toml"
"""The corrected cluster, and the new plan for it, in the folder of the run."""


def replan_settings(folder: Path) -> tuple[str, ...]:
    """Return the settings with which a configuration trains by the new plan in a run folder."""
    return (f"plan.cluster={folder / CLUSTER_FILE}", f"plan.file={folder / PLAN_FILE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """Simulated seconds of a step over the measured links, by the present and by a new plan.

    `keeps_rank_0` says whether rank 0 stays on its host, whose disk has the metrics of the run.
    """

    present_s: float
    new_s: float
    keeps_rank_0: bool = True

    @property
    def is_worth_it(self) -> bool:
        """Whether the new plan is faster by more than simulations may err between two plans."""
        return self.new_s < 0.95 * self.present_s

    def repays(self, *, num_steps: int, pause_s: float) -> bool:
        """Return whether so many steps save more seconds than a pause takes.

        >>> found = Replanned(present_s=4.0, new_s=1.0)
        >>> found.repays(num_steps=10, pause_s=20.0), found.repays(num_steps=5, pause_s=20.0)
        (True, False)
        """
        return num_steps * (self.present_s - self.new_s) > pause_s
