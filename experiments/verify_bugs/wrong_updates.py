"""Errors of parameters and their updates, to plant into the runtime; see `planted`."""

# pyright: reportPrivateUsage=false
# An error is planted where it would be made.

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp

from experiments.verify_bugs.planting import Bug, Plant, around, packed, sharded, unlike
from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.runtime.stage import functions, optimizer
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.step import parameter_gather
from jaxpipe.runtime.step.stage_run import StageRun
from jaxpipe.runtime.step.step_totals import StepTotals


def _after_update(change: Callable[[StageRun], None]) -> Plant:
    def update(right: Callable, run: StageRun, norm: float, *, scale: Any = None) -> None:
        right(run, norm, scale=scale)
        change(run)

    return lambda: around(StageRun, "update", update)


def _frozen_moved(run: StageRun) -> None:
    params = dict(run.state.params)
    if "positions" in params.get("embed", {}):
        params["embed"] = {**params["embed"], "positions": params["embed"]["positions"] * 1.001}
        run.state = replace(run.state, params=params)


def _count_not_advanced(run: StageRun) -> None:
    def reset(leaf: Any) -> Any:
        return leaf * 0 if jnp.issubdtype(leaf.dtype, jnp.integer) else leaf

    run.state = replace(run.state, moments=jax.tree.map(reset, run.state.moments))


def _moments_reset(run: StageRun) -> None:
    zeros = jax.tree.map(jnp.zeros_like, run.state.moments)
    run.state = replace(run.state, moments=zeros)


def _updated_twice() -> list[Any]:
    def update(right: Callable, run: StageRun, norm: float, *, scale: Any = None) -> None:
        right(run, norm, scale=scale)
        right(run, norm, scale=scale)

    return around(StageRun, "update", update)


def _last_stage_not_updated() -> list[Any]:
    def update(right: Callable, run: StageRun, norm: float, *, scale: Any = None) -> None:
        if not run.calls.spec.is_last:
            right(run, norm, scale=scale)

    return around(StageRun, "update", update)


def _still_scaled() -> list[Any]:
    def update(right: Callable, run: StageRun, norm: float, *, scale: Any = None) -> None:
        right(run, norm, scale=None if scale is None else 1.0)

    return around(StageRun, "update", update)


def _norm_still_scaled() -> list[Any]:
    return around(StepTotals, "unscaled", lambda _, totals, scale: totals)  # noqa: ARG005


def _decays_all() -> list[Any]:
    everything = lambda params: jax.tree.map(lambda _: True, params)  # noqa: E731
    return [patch.object(optimizer, "decay_mask", lambda _: everything)]


def _built_optimizer(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    return lambda: around(
        functions,
        "stage_optimizer",
        lambda right, config, **options: right(config, **change(options)),
    )


def _shards_in_other_order() -> list[Any]:
    def gather(right: Callable, transport: Any, piece: Any, members: Any, **options: Any) -> Any:
        return right(transport, piece, tuple(reversed(members)), **options)

    return around(parameter_gather, "all_gather", gather)


def _gathered_and_not_joined() -> list[Any]:
    return around(StageRun, "join", lambda *_: None)


def _initial(change: Callable[..., Any]) -> Plant:
    return lambda: around(Stage, "init", change)


def _other_seed(right: Callable, part: Stage, *, seed: int) -> Any:
    return right(part, seed=seed + part.index)


def _shifted_layers(right: Callable, part: Stage, *, seed: int) -> Any:
    first = 0 if part.layers.start else 1
    return right(replace(part, layers=range(first, first + len(part.layers))), seed=seed)


def _adapters_at_half_scale() -> list[Any]:
    return [patch.object(LoraConfig, "scale", property(lambda lora: lora.alpha / lora.rank / 2))]


def _adapters_too_large() -> list[Any]:
    return _after_update(_kernels_moved)()


def _kernels_moved(run: StageRun) -> None:
    blocks = jax.tree.map(lambda leaf: leaf * 1.0001, run.state.params["blocks"])
    run.state = replace(run.state, params={**run.state.params, "blocks": blocks})


BUGS_OF_UPDATES: tuple[Bug, ...] = (
    unlike("step of the optimizer not counted", _after_update(_count_not_advanced)),
    unlike("moments cleared after each step", _after_update(_moments_reset)),
    unlike("updated twice", _updated_twice),
    unlike("last stage not updated", _last_stage_not_updated),
    unlike("norms and biases decay", _decays_all, "update"),
    unlike(
        "learning rate of another length",
        _built_optimizer(lambda o: {**o, "num_steps": 9}),
        "update",
    ),
    unlike("stages drawn from other seeds", _initial(_other_seed), "init"),
    unlike("layers of another stage", _initial(_shifted_layers), "init"),
    sharded("loss scale left in the update", _still_scaled),
    sharded("loss scale left in the norm", _norm_still_scaled),
    sharded("frozen parameter moves", _after_update(_frozen_moved)),
    sharded("shards gathered in another order", _shards_in_other_order),
    sharded("gathered parameters not used", _gathered_and_not_joined),
    packed("adapters at half their scale", _adapters_at_half_scale, "cast"),
    packed("kernels below adapters move", _adapters_too_large),
)
