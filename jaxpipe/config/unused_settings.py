"""Settings that change nothing where another one is off: a line for each that is not its default.

A field with a rule of its own beside it, such as `outer.every` without islands, is refused there.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxpipe.collective import CodecKind
from jaxpipe.config.build_job import scales_loss
from jaxpipe.config.read import Config
from jaxpipe.runtime.run_config import Survival
from jaxpipe.runtime.stage.optimizer_config import OptimizerName, Schedule


@dataclass(frozen=True, slots=True)
class Dependence:
    """Fields of a section that are read only if another setting is chosen; `needs` names it."""

    section: str
    fields: tuple[str, ...]
    needs: str
    is_chosen: Callable[[Config], bool]


_MOMENTS_OF = {
    "beta1": (OptimizerName.ADAMW, OptimizerName.LION, OptimizerName.SGD, OptimizerName.MUON),
    "beta2": (OptimizerName.ADAMW, OptimizerName.LION, OptimizerName.MUON),
    "epsilon": (OptimizerName.ADAMW, OptimizerName.MUON),
}
_OF_EXPERTS = (
    "experts_per_token",
    "capacity_factor",
    "normalised_gates",
    "balance_loss",
    "z_loss",
    "dispatch",
    "routing_groups",
)


def _has_name(names: tuple[OptimizerName, ...]) -> Callable[[Config], bool]:
    return lambda config: config.optimizer.name in names


DEPENDENCES: tuple[Dependence, ...] = (
    Dependence("lora", ("alpha", "targets"), "`lora.rank` above 0", lambda c: c.lora.rank > 0),
    Dependence(
        "model",
        _OF_EXPERTS,
        "`model.experts` above 0",
        lambda c: getattr(c.model, "experts", 0) > 0,
    ),
    Dependence(
        "quorum",  # `island` and `least` need `islands`
        (
            *("islands", "every", "grace_s", "discount", "learning_rate", "momentum", "codec"),
            "timeout_s",
        ),
        "`quorum.server`",
        lambda c: c.quorum.is_on,
    ),
    Dependence(
        "comm",
        ("top_k_fraction",),
        f"`comm.gradients` = {CodecKind.TOP_K}",
        lambda c: c.comm.gradients is CodecKind.TOP_K,
    ),
    Dependence(
        "outer",
        ("top_k_fraction",),
        f"`outer.codec` = {CodecKind.TOP_K}",
        lambda c: c.outer.codec is CodecKind.TOP_K,
    ),
    Dependence(
        "loss_scale",
        ("initial", "factor", "growth_steps", "largest"),
        "`loss_scale.enabled` = true, or `model.compute_dtype` = float16",
        scales_loss,
    ),
    Dependence("run", ("project",), "`run.trackers`", lambda c: bool(c.run.trackers)),
    Dependence(
        "run",
        ("recover_s",),
        f"`run.survive` = {Survival.SHRINK}",
        lambda c: c.run.survive is Survival.SHRINK,
    ),
    Dependence(
        "optimizer",
        ("decay_fraction",),
        f"`optimizer.schedule` = {Schedule.WSD}",
        lambda c: c.optimizer.schedule is Schedule.WSD,
    ),
    Dependence(
        "optimizer",
        ("final_fraction",),
        f"an `optimizer.schedule` other than {Schedule.CONSTANT}",
        lambda c: c.optimizer.schedule is not Schedule.CONSTANT,
    ),
    *(
        Dependence(
            "optimizer", (name,), f"`optimizer.name` of {', '.join(names)}", _has_name(names)
        )
        for name, names in _MOMENTS_OF.items()
    ),
)


_OVER_HOSTS = Dependence("run", ("interface", "answer_s"), "`jaxpipe run --hosts`", lambda _: False)


def unused_settings(config: Config, *, over_hosts: bool = False) -> Iterator[str]:
    """Yield a line for each setting that changes nothing.

    `over_hosts` says whether it is `jaxpipe run --hosts` that starts the ranks.

    >>> from jaxpipe.config.read import config_of_settings
    >>> list(unused_settings(config_of_settings(["model.preset=tiny", "lora.alpha=4.0"])))
    ['`lora.alpha` (4.0) changes nothing: it needs `lora.rank` above 0']
    """
    for row in (*DEPENDENCES, *(() if over_hosts else (_OVER_HOSTS,))):
        if row.is_chosen(config):
            continue
        section = getattr(config, row.section)
        for name in row.fields:
            value = getattr(section, name, None)
            if value != _default(section, name, value):
                yield f"`{row.section}.{name}` ({value}) changes nothing: it needs {row.needs}"


def _default(section: Any, name: str, otherwise: Any) -> Any:
    """Return the default of a field; `otherwise` where the section has no such field."""
    for field in dataclasses.fields(section):
        if field.name == name:
            if field.default_factory is not dataclasses.MISSING:
                return field.default_factory()
            return otherwise if field.default is dataclasses.MISSING else field.default
    return otherwise
