"""What every launcher needs: the device of each rank, and the command that ranks run."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.ulfm_support import SURVIVAL_OPTIONS

if TYPE_CHECKING:  # they import numpy, which `--help` can do without
    from jaxpipe.plan import Plan
    from jaxpipe.topo import Cluster, Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A run to start: its plan, and the `arguments` that each rank passes to `jaxpipe`.

    The run ends after `steps` steps; `store` is the URL of its checkpoints, None if these are in
    its folder. With `survives`, the others continue when ranks are lost,
    which takes Open MPI's own launcher. A rank has `gpus_each` GPUs, if the cluster has any.

    Raises:
        ConfigError: the folder or an argument holds a control character, such as a newline.
    """

    plan: "Plan"
    cluster: "Cluster"
    folder: str
    arguments: tuple[str, ...]
    steps: int
    survives: bool = False
    gpus_each: int = 1
    store: str | None = None

    def __post_init__(self) -> None:
        words = (
            ("run.folder", self.folder),
            ("checkpoint.folder", self.store or ""),
            *(("command", word) for word in self.arguments),
        )
        for field, word in words:
            if not word.isprintable():
                raise ConfigError(
                    f"`{field}` has {word!r:.80}, whose control characters a script cannot hold; "
                    "leave them out, or put the setting into the configuration"
                )

    @property
    def name(self) -> str:
        """The name of the job for schedulers."""
        return scheduler_name(self.folder)

    @property
    def heading(self) -> str:
        """The comment at the top of a script."""
        return f"# {self.plan.shape} on cluster {self.cluster.name}."

    @property
    def devices(self) -> "tuple[Device, ...]":
        """The device of each rank."""
        return tuple(
            self.cluster.devices[self.plan.device(rank)] for rank in range(self.plan.num_ranks)
        )

    @property
    def ranks_of_host(self) -> dict[str, int]:
        """The number of ranks of each host, hosts in the order of their first ranks."""
        return dict(Counter(device.host for device in self.devices))

    @property
    def slots_of_host(self) -> dict[str, int]:
        """The number of devices of each host that runs ranks, in the same order."""
        counts = Counter(device.host for device in self.cluster.devices)
        return {host: counts[host] for host in self.ranks_of_host}

    @property
    def slots(self) -> tuple[int, ...]:
        """The index of each rank's device on its host."""
        # All devices of the host count, used or not: the index is the number of the GPU.
        of_host: dict[str, list[str]] = {}
        for device in self.cluster.devices:
            of_host.setdefault(device.host, []).append(device.name)
        return tuple(of_host[device.host].index(device.name) for device in self.devices)

    @property
    def uses_gpus(self) -> bool:
        """Whether all ranks have a GPU, according to the cluster."""
        return all(device.gpu is not None for device in self.devices)

    @property
    def survival_options(self) -> tuple[str, ...]:
        """The options of mpirun that let ranks survive the loss of others."""
        return SURVIVAL_OPTIONS if self.survives else ()

    @property
    def command_line(self) -> str:
        """The command for a shell that has set `jaxpipe`; `--resume` may be appended."""
        return f'"$jaxpipe" {shlex.join(self.arguments)}'

    def mpirun_command(self, slots: Sequence[int]) -> str:
        """Return the command for mpirun, in which rank r uses GPU `slots[r]` of its host.

        Without GPUs, or with several per rank, it is the plain command: ranks then choose.
        """
        if not self.uses_gpus or self.gpus_each > 1:
            return self.command_line
        listed = " ".join(map(str, slots))
        # Single quotes: the shell of the rank expands the variables. `rank` is $0 of that shell.
        devices = f"slots=({listed}); CUDA_VISIBLE_DEVICES=${{slots[$OMPI_COMM_WORLD_RANK]}}"
        return f"bash -c '{devices} exec \"$@\"' rank {self.command_line}"


def scheduler_name(folder: str) -> str:
    """Return the last part of a folder as schedulers take it: 40 characters, the first a letter.

    >>> scheduler_name("runs/My run_2/"), scheduler_name(".."), scheduler_name("runs/20261121")
    ('my-run-2', 'jaxpipe', 'jaxpipe-20261121')
    """
    last = re.sub(r"[^a-z0-9]+", "-", folder.rstrip("/").rpartition("/")[2].lower()).strip("-")
    name = last if last[:1].isalpha() else f"jaxpipe-{last}"
    return name[:40].strip("-")
