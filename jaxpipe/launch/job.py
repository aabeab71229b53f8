"""What every launcher has to know: which rank goes to which device, and what each of them runs."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jaxpipe.plan import Plan
from topo import Cluster, Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A run that is to start: its plan, and the words of the command that every rank runs."""

    plan: Plan
    cluster: Cluster
    folder: str
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """What schedulers call it."""
        return scheduler_name(self.folder)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The device of each rank."""
        return tuple(
            self.cluster.devices[self.plan.device(rank)] for rank in range(self.plan.num_ranks)
        )

    @property
    def ranks_of_host(self) -> dict[str, int]:
        """How many ranks each host runs, in the order of their first ranks."""
        return dict(Counter(device.host for device in self.devices))

    @property
    def slots(self) -> tuple[int, ...]:
        """The number of each rank's device among all of its host."""
        of_host: dict[str, list[str]] = {}
        for device in self.cluster.devices:
            of_host.setdefault(device.host, []).append(device.name)
        return tuple(of_host[device.host].index(device.name) for device in self.devices)

    @property
    def uses_gpus(self) -> bool:
        """Whether the cluster says that all ranks have a GPU."""
        return all(device.gpu is not None for device in self.devices)

    @property
    def command_line(self) -> str:
        """The command as a shell takes it, to which `--resume` may be added."""
        return shlex.join(self.command)

    def mpirun_command(self, slots: Sequence[int]) -> str:
        """Return the command as mpirun starts it, where rank r has the GPU `slots[r]` of its host.

        Without GPUs it is the command alone.
        """
        if not self.uses_gpus:
            return self.command_line
        listed = " ".join(map(str, slots))
        chosen = f"slots=({listed}); CUDA_VISIBLE_DEVICES=${{slots[$OMPI_COMM_WORLD_RANK]}}"
        return f"bash -c '{chosen} exec \"$@\"' rank {self.command_line}"

    def resume_lines(self) -> list[str]:
        """Return shell lines that set `resume` to the flag where there is a checkpoint."""
        pattern = f"{shlex.quote(self.folder)}/checkpoints/step-????????/manifest.json"
        return [
            "resume=()",
            f"for manifest in {pattern}; do",
            '  if [[ -e "$manifest" ]]; then resume=(--resume); fi',
            "done",
        ]


def scheduler_name(folder: str) -> str:
    """Return the last part of a folder in the alphabet of schedulers, at most 40 characters.

    >>> scheduler_name("runs/My run_2/"), scheduler_name("..")
    ('my-run-2', 'jaxpipe')
    """
    last = folder.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:40] or "jaxpipe"
