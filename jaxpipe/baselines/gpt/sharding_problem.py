"""The step that `jaxpipe autoshard` shards: from a request to a traced training step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxpipe.baselines.autoshard.graph import Graph, trace_step
from jaxpipe.baselines.autoshard.hlo import CompileTarget, TargetSpeeds, target_speeds
from jaxpipe.baselines.autoshard.intra_op import Machine
from jaxpipe.baselines.autoshard.spmd import NamedStep, initial_state, train_step
from jaxpipe.baselines.autoshard.strategy import AxisLink, MeshShape
from jaxpipe.baselines.gpt.alpa_gpt import AlpaGpt
from jaxpipe.models import GptConfig, gpt_preset
from jaxpipe.models.gpt import Gpt

OPTIMIZER = optax.adam(1e-4)
MOMENT_PART = 0.1
"""What Adam's first moment is of the gradient after one step: 1 less the first decay rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingProblem:
    """The step to shard, and what the request says of it.

    `step` returns only the state, as Alpa's; `full_step` the mean loss as well.
    """

    config: GptConfig
    model: Gpt | AlpaGpt
    step: NamedStep
    full_step: Callable[..., Any]
    arguments: tuple[Any, ...]
    request: Mapping[str, Any]
    speeds: TargetSpeeds

    @property
    def machine(self) -> Machine:
        """The speed of a device in the dtype of the request."""
        return Machine(flops_per_s=self.speeds.products[self.request["dtype"]])

    def graph(self) -> Graph:
        """Trace the step of one microbatch."""
        names, result_names = self.step.names, self.step.result_names
        arguments = self.step.of_one_microbatch(self.arguments)
        return trace_step(self.step.run, *arguments, names=names, result_names=result_names)

    def mesh(self, dp: int, op: int) -> MeshShape:
        """Return a mesh with the links of the target."""

        def link(group: int) -> AxisLink:
            return AxisLink(bandwidth_bytes_per_s=self.speeds.ring_bytes_per_s(group))

        return MeshShape(dp=dp, op=op, dp_link=link(dp), op_link=link(op))


def problem_of(request: Mapping[str, Any]) -> ShardingProblem:
    """Return the step of a request; its arguments are shapes.

    Raises:
        ConfigError: the speed of the target in this format is not known.
    """
    config, speeds = config_and_speeds(request)
    model = AlpaGpt(config) if request["model"].startswith("alpa-") else Gpt(config)
    # Shapes alone: billions of parameters would not fit here, and are never computed.
    state = jax.eval_shape(lambda key: _fresh(model, key, config), jax.random.key(0))
    batch = tuple(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in batch_shapes(config, request))
    full_step = train_step(
        model, OPTIMIZER, remat=request["remat"], microbatches=request["microbatches"]
    )
    step = NamedStep(
        run=lambda *trees: full_step(*trees)[0],
        names=("state", "tokens", "targets"),
        result_names=("state",),
        microbatches=request["microbatches"],
        duplex=request["duplex"],
    )
    return ShardingProblem(
        config=config,
        model=model,
        step=step,
        full_step=full_step,
        arguments=(state, *batch),
        request=request,
        speeds=speeds,
    )


def config_and_speeds(request: Mapping[str, Any]) -> tuple[GptConfig, TargetSpeeds]:
    """Return the sizes of the requested model, and the speeds of the target."""
    speeds = target_speeds(CompileTarget(request["target"]))
    config = replace(gpt_preset(request["model"]), compute_dtype=request["dtype"])
    if request["layers"] is not None:
        config = replace(config, num_layers=request["layers"])
    return config, speeds


def batch_shapes(
    config: GptConfig, request: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of inputs and targets: tokens or pictures, tokens or labels."""
    num = request["batch"]
    inputs = (num, *config.picture) if config.picture is not None else (num, config.sequence)
    return inputs, (num,) if config.classes else (num, config.sequence)


def drawn(problem: ShardingProblem) -> tuple[Any, ...]:
    """Return a fresh state and a random batch, instead of shapes."""
    config, keys = problem.config, jax.random.split(jax.random.key(problem.request["seed"]), 3)
    inputs, targets = batch_shapes(config, problem.request)
    return (
        _fresh(problem.model, keys[0], config),
        jax.random.randint(keys[1], inputs, 0, config.vocabulary, jnp.int32),
        jax.random.randint(keys[2], targets, 0, config.classes or config.vocabulary, jnp.int32),
    )


def _fresh(model: Gpt | AlpaGpt, key: Any, config: GptConfig) -> Any:
    return initial_state(model, OPTIMIZER, key, dtype=config.compute_dtype)
