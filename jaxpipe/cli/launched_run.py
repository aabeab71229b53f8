"""The run that a launcher starts elsewhere: its plan, its words, and the GPUs of each rank."""

from collections.abc import Sequence
from pathlib import Path

from jaxpipe.config import Config, cluster_from, load_config
from jaxpipe.errors import ConfigError
from jaxpipe.launch import Launch
from jaxpipe.plan import Plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.terminal.console import set_words
from jaxpipe.runtime.rank_mesh import rank_mesh
from jaxpipe.runtime.run_config import ComputeKind, Survival


def launched_run(path: Path, settings: Sequence[str]) -> Launch:
    """Return the run of a configuration file, as a launcher has to start it.

    Raises:
        ConfigError: it keeps no checkpoints to resume from.
    """
    read = load_config(path, settings)
    if read.run.compute is ComputeKind.PACED:
        raise ConfigError(
            f"`run.compute` ({read.run.compute}) keeps no checkpoint, from which a restarted run "
            "would resume; use `jaxpipe train` on one host"
        )
    cluster = cluster_from(read)
    plan = plan_from(read, cluster)
    return Launch(
        plan=plan,
        cluster=cluster,
        folder=read.run.folder,
        arguments=("train", str(path), *set_words(settings)),
        steps=read.train.steps,
        store=read.checkpoint.folder,
        survives=read.run.survive is Survival.SHRINK,
        gpus_each=_gpus_each(read, plan),
    )


def _gpus_each(read: Config, plan: Plan) -> int:
    """Return the number of GPUs of every rank.

    Raises:
        ConfigError: ranks have unequal numbers.
    """
    sizes = {rank_mesh(plan, read.mesh, rank=rank).num_devices for rank in range(plan.num_ranks)}
    if len(sizes) > 1:
        raise ConfigError(
            "`plan` must have the same number of devices for each rank to be launched, not "
            f"{', '.join(map(str, sorted(sizes)))}; start the ranks yourself, with all GPUs of a "
            "host visible, or plan ranks of equal groups"
        )
    return sizes.pop()
