"""What fine-tuning changes of a configuration: what it excludes, and what it trains."""

from typing import TYPE_CHECKING

from jaxpipe.config.compatibility import check_compatible
from jaxpipe.config.read import Config
from jaxpipe.config.saved_config import has_adapters, saved_lora
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.runtime.checkpoint import Checkpoint

if TYPE_CHECKING:  # they import jax
    from jaxpipe.runtime.stage.model import Model

_KEPT = ("rank", "alpha", "targets")


def is_tuned(config: Config) -> bool:
    """Return whether a part of the parameters is trained."""
    return config.lora.is_on or bool(config.train.frozen)


def tuned_model_from(config: Config, model: "Model | None" = None) -> "Model":
    """Return the model that is trained, of the configuration or a given one. Imports jax.

    Raises:
        ConfigError: a pattern of `lora.targets` or `train.frozen` matches nothing, layers of a
            parameter are frozen whose optimizer is sharded.
    """
    from jaxpipe.finetune.tuned_model import partly_frozen, tuned
    from jaxpipe.models import build_model

    check_compatible(config)
    base = build_model(config.model) if model is None else model
    tuned_model = tuned(base, lora=config.lora, frozen=config.train.frozen)
    # Pieces of a shard have no layers, by which the frozen ones could be told from others.
    if config.optimizer.sharded and (name := partly_frozen(tuned_model)) is not None:
        raise ConfigError(
            f"`train.frozen` ({', '.join(config.train.frozen)}) matches some layers of {name} "
            "alone: with `optimizer.sharded`, a parameter must be frozen in all layers or in none; "
            "freeze all, or set `optimizer.sharded` to false"
        )
    return tuned_model


def continues_adapters(config: Config, checkpoint: Checkpoint) -> bool:
    """Return whether a run trains the adapters of a checkpoint, where others are merged first."""
    if not config.lora.is_on or not has_adapters(checkpoint):
        return False
    return saved_lora(checkpoint) == config.lora


def check_same_tuning(config: Config, checkpoint: Checkpoint) -> None:
    """Check that a run continues to train what its checkpoint has trained.

    A checkpoint of step 0 is an import, from which anything may start, unless it has adapters.

    Raises:
        CheckpointError: adapters or frozen parameters differ.
    """
    if checkpoint.step == 0 and not has_adapters(checkpoint):
        return
    saved = saved_lora(checkpoint)
    pairs = {f"lora.{name}": (getattr(saved, name), getattr(config.lora, name)) for name in _KEPT}
    if not saved.is_on and not config.lora.is_on:
        pairs = {}
    train = checkpoint.metadata.get("config", {}).get("train", {})
    pairs["train.frozen"] = (tuple(train.get("frozen", ())), config.train.frozen)
    for field, (old, new) in pairs.items():
        if old != new:
            raise CheckpointError(
                f"`{field}` ({new!r}) must be as in the checkpoint {checkpoint.folder}, {old!r}: a "
                "run continues with what it trains; set it to that, or begin another run (`jaxpipe "
                "train --from`, with another `run.folder`)"
            )
