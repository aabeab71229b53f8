"""The model card of an export, from what the run has recorded: configuration, data and losses."""

from pathlib import Path
from typing import TYPE_CHECKING

from jaxpipe.errors import DataError
from jaxpipe.installed import version_of
from jaxpipe.models import num_parameters
from jaxpipe.run.terminal.console import errors

if TYPE_CHECKING:  # they take long to import
    from jaxpipe.interchange import ModelCard
    from jaxpipe.runtime.checkpoint import Checkpoint


def card_of(
    checkpoint: "Checkpoint",
    run: Path,
    out: Path,
    *,
    base: str | None,
    dtype: str,
    is_adapter: bool = False,
) -> "ModelCard | None":
    """Return the card to write; None where `out` has a README.md of the user, which stays.

    Raises:
        CheckpointError: that README.md cannot be read.
    """
    from jaxpipe.interchange import CARD, ModelCard, is_of_user

    if is_of_user(out):
        errors.print(f"{out / CARD} stays, for it is yours: no model card is written", markup=False)
        return None
    return ModelCard(
        name=out.resolve().name,
        base=base,
        is_adapter=is_adapter,
        facts={**_facts(checkpoint, run, dtype), "software": f"jaxpipe {version_of('jaxpipe')}"},
    )


def _facts(checkpoint: "Checkpoint", run: Path, dtype: str) -> dict[str, str]:
    """Return what the table says; of an import that was not trained, its size alone."""
    from jaxpipe.config import saved_config

    config, step = saved_config(checkpoint), checkpoint.step
    model, train, optimizer = config.model, config.train, config.optimizer
    size = num_parameters(model, layers=model.num_layers, embed=True, head=True)
    facts = {"parameters": f"{size:,}, in {dtype}"}
    if step == 0:
        return facts
    width = train.sequence or model.sequence
    return {
        **facts,
        "data": ", ".join(map(_data_of, config.data.folders)),
        "steps": f"{step:,} of {train.steps:,}",
        "tokens": f"{step * train.batch * width:,}: {train.batch} samples of {width} a step",
        "optimizer": f"{optimizer.name}, learning rate {optimizer.learning_rate:g}, schedule "
        f"{optimizer.schedule}, {optimizer.warmup_steps} steps of warm-up, weight decay "
        f"{optimizer.weight_decay:g}",
        **_adapters(config.lora.rank, config.lora.alpha, config.lora.targets),
        **_losses(run, step),
    }


def _adapters(rank: int, alpha: float, targets: tuple[str, ...]) -> dict[str, str]:
    if not rank:
        return {}
    return {"adapters": f"LoRA, rank {rank}, alpha {alpha:g}, of {', '.join(targets)}"}


def _data_of(folder: str) -> str:
    """Return the sources of a dataset and its tokens; the name of its folder, if it is gone."""
    from jaxpipe.runtime.data import open_dataset

    if "://" in folder:  # an export needs no network
        return folder
    try:
        dataset = open_dataset(Path(folder), verify=False)
    except DataError:
        return Path(folder).name
    return f"{dataset.source} ({dataset.train.shape[0]:,} tokens)"


def _losses(run: Path, step: int) -> dict[str, str]:
    """Return the first and the last loss up to a step, in training and held out."""
    from jaxpipe.runtime.metrics.records import METRICS_FILE, read_summary

    try:
        summary = read_summary(run / METRICS_FILE)
    except DataError:  # a run that was imported, or copied without its metrics
        return {}
    lines = {"training loss": summary.losses, "held-out loss": summary.held_out}
    known = {
        name: [loss for number, loss in points if number <= step] for name, points in lines.items()
    }
    return {
        name: f"{losses[0]:.3f} to {losses[-1]:.3f} nats per token"
        for name, losses in known.items()
        if losses
    }
