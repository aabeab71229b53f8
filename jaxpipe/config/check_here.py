"""Whether this host can compute what a configuration asks for: what depends on its backend."""

from collections.abc import Mapping

from jaxpipe.config.read import Config
from jaxpipe.errors import ConfigError
from jaxpipe.models.gpt_config import Attention
from jaxpipe.plan import Plan
from jaxpipe.runtime.process.jax_backend import check_platforms, num_jax_devices
from jaxpipe.runtime.rank_mesh import rank_mesh
from jaxpipe.runtime.run_config import ComputeKind
from jaxpipe.topo.gpu import Precision, gpu
from jaxpipe.topo.this_machine import gpu_here, num_jax_gpus

_WIDTH_STEP, _MOST_WIDTH = 8, 128
"""Of the heads in cuDNN's kernels; from Hopper on the most is 256, which `auto` does not use."""


def check_here(config: Config, plan: Plan | None, environment: Mapping[str, str]) -> None:
    """Check that ranks of a plan can compute on this host; without a plan, what the section says.

    A paced run computes nothing.

    Raises:
        ConfigError: a backend, a kernel or a device of a mesh is not there.
    """
    if config.run.compute is ComputeKind.PACED:
        return
    check_platforms(environment)
    if getattr(config.model, "attention", None) is Attention.FLASH:
        _check_flash(config, environment)
    meshes = [config.mesh]
    if plan is not None:
        meshes = [rank_mesh(plan, config.mesh, rank=rank) for rank in range(plan.num_ranks)]
    mesh = max(meshes, key=lambda mesh: mesh.num_devices)
    num_devices = num_jax_devices(environment)
    if mesh.num_devices > max(1, num_devices):
        raise ConfigError(
            f"{mesh.words} = {mesh.num_devices} must be at most the devices that a rank sees, and "
            f"jax shows {num_devices} on this host; lower one of them, or show the rank more "
            "devices"
        )


def _check_flash(config: Config, environment: Mapping[str, str]) -> None:
    """Check that the fused kernel has a GPU, and takes heads and sequences of these lengths."""
    model = config.model
    width = getattr(model, "width", model.dim // model.num_heads)
    if width % _WIDTH_STEP or width > _MOST_WIDTH:
        raise ConfigError(
            f"`model.attention` ({Attention.FLASH}) needs heads whose width is a multiple of "
            f"{_WIDTH_STEP} up to {_MOST_WIDTH}, not {width}; set it to {Attention.AUTO}, or "
            "change the width"
        )
    sequence = config.train.sequence or model.sequence
    if sequence % 2:
        raise ConfigError(
            f"`model.attention` ({Attention.FLASH}) needs an even number of tokens in a sample, "
            f"not {sequence}; set it to {Attention.AUTO}, or change `train.sequence`"
        )
    if not num_jax_gpus(environment):
        raise ConfigError(
            f"`model.attention` ({Attention.FLASH}) needs an NVIDIA GPU, and jax computes on the "
            f"CPU of this host; set it to {Attention.AUTO}"
        )
    kind = gpu_here()
    if kind is not None and Precision.BF16 not in dict(gpu(kind).peaks):
        raise ConfigError(
            f"`model.attention` ({Attention.FLASH}) needs a GPU of Ampere or newer, and this host "
            f"has a {kind}; set it to {Attention.AUTO}"
        )
