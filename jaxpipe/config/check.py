"""What is checked of a run before any of its ranks computes, beyond the configuration itself."""

from pathlib import Path

from jaxpipe.collective import CodecKind
from jaxpipe.config.read import Config, to_tree
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.runtime.checkpoint import Checkpoint, latest, newest_valid
from jaxpipe.runtime.config import Survival, TransportKind
from jaxpipe.runtime.data import num_eval_batches, open_dataset, sample
from jaxpipe.runtime.metrics.trackers import check_installed

_MAY_CHANGE = frozenset({"dropout", "compute_dtype"})
"""What may differ between a checkpoint's model and the one that goes on from it."""


def check_run(config: Config, *, resume: bool) -> Checkpoint | None:
    """Check all that a run will read before any rank computes; it reads every byte once.

    Return the checkpoint from which a run resumes: the newest that is intact.

    Raises:
        ConfigError: the sequence or the vocabulary does not fit the model, a tracker is not
            installed, the run's folder holds a run already, or there is no smaller plan for ranks
            to shrink to.
        DataError: the dataset is missing, corrupt or too small.
        CheckpointError: there is nothing to resume from, it is corrupt, or of another model.
    """
    sequence = config.train.sequence or config.model.sequence
    if sequence > config.model.sequence:
        raise ConfigError(
            f"a sequence fits the positions: `train.sequence` is {sequence}, `model.sequence` "
            f"{config.model.sequence}; shorten the one or lengthen the other"
        )
    check_installed(config.run.trackers)
    if config.run.survive is Survival.SHRINK and config.plan.file is not None:
        raise ConfigError(
            f"a plan from a file is for its ranks alone: `run.survive` is {config.run.survive}, "
            f"`plan.file` {config.plan.file}; leave out the file, or set `run.survive` to "
            f"{Survival.RESTART}"
        )
    _check_data(config, sequence=sequence)
    folder = Path(config.run.folder)
    if resume:
        checkpoint = newest_valid(folder)
        _check_model(config, checkpoint)
        return checkpoint
    if _has_checkpoint(folder):
        raise ConfigError(
            f"a run does not overwrite another: `run.folder` {config.run.folder} holds "
            f"checkpoints; go on with --resume, or name another folder"
        )
    return None


def check_paced(config: Config, *, resume: bool) -> None:
    """Check that paced computes and emulated links can stand for all that is configured.

    Raises:
        ConfigError: they cannot.
    """
    comm, run = config.comm, config.run
    wrong = {
        "run.transport": (run.transport, run.transport is TransportKind.NCCL, "leave it out"),
        "comm.boundary": (comm.boundary, comm.boundary is not CodecKind.NONE, "set it to none"),
        "comm.gradients": (comm.gradients, comm.gradients is not CodecKind.NONE, "set it to none"),
        "mesh": (config.mesh, config.mesh.num_devices > 1, "leave it out"),
        "optimizer.sharded": (True, config.optimizer.sharded, "set it to false"),
        "resume": (True, resume, "leave it out"),
        "run.trackers": (", ".join(config.run.trackers), bool(config.run.trackers), "leave it out"),
    }
    for field, (value, is_wrong, fix) in wrong.items():
        if is_wrong:
            raise ConfigError(
                f"paced computes stand for ranks of one device that send what they compute: "
                f"`{field}` is {value}; {fix}"
            )


def _check_data(config: Config, *, sequence: int) -> None:
    dataset = open_dataset(Path(config.data.folder))
    if dataset.vocabulary > config.model.vocabulary:
        raise ConfigError(
            f"every token has an embedding: `model.vocabulary` is {config.model.vocabulary}, the "
            f"dataset {config.data.folder} has {dataset.vocabulary} tokens; set it to that"
        )
    sample(dataset.train, seed=0, step=0, batch=1, sequence=sequence)
    batches = num_eval_batches(dataset.eval, batch=config.train.batch, sequence=sequence)
    if config.train.eval_batches > batches:
        raise ConfigError(
            f"`train.eval_batches` is {config.train.eval_batches}, but the held-out split of "
            f"{config.data.folder} has only {batches} batches of {config.train.batch} samples of "
            f"{sequence} tokens; lower it, or hold out more"
        )


def _has_checkpoint(folder: Path) -> bool:
    try:
        latest(folder)
    except CheckpointError:
        return False
    return True


def _check_model(config: Config, checkpoint: Checkpoint) -> None:
    saved, wanted = checkpoint.metadata["config"]["model"], to_tree(config)["model"]
    for field in set(wanted) - _MAY_CHANGE:
        if saved[field] != wanted[field]:
            raise CheckpointError(
                f"a run goes on with its own model: `model.{field}` is {wanted[field]!r}, the "
                f"checkpoint {checkpoint.folder} has {saved[field]!r}; set it to that"
            )
