"""Execute a strategy on emulated devices, and compare it with one device."""

from typing import Any, Final

import jax
import numpy as np

from jaxpipe.baselines.autoshard.spmd import run_hosts, run_one_device, run_program
from jaxpipe.baselines.autoshard.strategy import Strategy
from jaxpipe.baselines.gpt.sharding_problem import MOMENT_PART, ShardingProblem, drawn
from jaxpipe.errors import ConfigError

_MOST_BYTES: Final = 8 * 2**30


def executed(problem: ShardingProblem, strategy: Strategy) -> dict[str, Any]:
    """Return seconds of a step, losses, and the largest difference of a gradient.

    Gradients are read from Adam's first moment after the first step.

    Raises:
        ConfigError: the states of all devices together do not fit here.
    """
    request, num_steps = problem.request, problem.request["execute"]
    _check_size(problem, strategy)
    arguments = drawn(problem)
    run = run_hosts if request["executor"] == "host" else run_program
    ran = run(problem.step, arguments, strategy, num_steps=num_steps)
    alone = run_one_device(problem.step, arguments, num_steps=num_steps)
    moments = [trained.states[0]["optimizer"][0].mu for trained in (ran, alone)]
    apart = jax.tree.map(lambda got, wanted: np.max(np.abs(got - wanted)), *moments)
    # The backward is dead code here, so that little is compiled.
    loss = jax.jit(lambda *trees: problem.full_step(*trees)[1])
    return {
        "executed_steps": num_steps,
        "executor": request["executor"],
        "executed_truth": "measured",
        "step_s": ran.step_s,
        "first_loss": float(loss(*arguments)),
        "loss": float(loss(ran.states[-1], *arguments[1:])),
        "one_device_loss": float(loss(alone.states[-1], *arguments[1:])),
        "gradient_difference": float(max(jax.tree.leaves(apart))) / MOMENT_PART,
    }


def _check_size(problem: ShardingProblem, strategy: Strategy) -> None:
    leaves = jax.tree.leaves(problem.arguments[0])
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    needed = num_bytes * (strategy.mesh.num_devices + 1)
    if needed > _MOST_BYTES:
        raise ConfigError(
            f"`--model` is too large for devices that this host emulates: their states could take "
            f"{needed / 2**30:.0f} GiB, more than {_MOST_BYTES / 2**30:.0f}; choose a smaller "
            "`--model` or fewer `--layers`"
        )
