"""Profile of a model from counted FLOPs: where `models` and `plan` meet."""

from dataclasses import replace
from functools import cache, partial

from jaxpipe.models import ModelConfig, costs, layer_config
from jaxpipe.models.bottleneck_costs import bottleneck_parameters, narrow_bytes
from jaxpipe.models.gpt_config import DTYPE_BYTES
from jaxpipe.plan.cost import BytesPerParameter, Part, Profile
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.schedule import Remat

_DEFAULT_OPTIMIZER = OptimizerConfig()


def gpt_profile(config: ModelConfig, *, remat: Remat, flops_per_s: float) -> Profile:
    """Return the profile of one sample of the longest sequence on a device of `flops_per_s`.

    >>> from jaxpipe.models import preset_config
    >>> config = preset_config("gpt-xl-24")
    >>> profile = gpt_profile(config, remat=Remat.FULL, flops_per_s=50e12)
    >>> round(1e3 * profile.layers[0].forward_s, 2), round(1e3 * profile.layers[0].backward_s, 2)
    (4.81, 13.4)
    """
    sizes = {"batch": 1, "sequence": config.sequence}
    head = costs.head_forward_flops(config, **sizes)
    parts = cache(partial(_layer, remat=remat, flops_per_s=flops_per_s))  # most layers are equal
    embed = costs.num_parameters(config, layers=0, embed=True, head=False)
    both = costs.num_parameters(config, layers=0, embed=True, head=True)
    counted = Profile(
        device="computed",
        flops_per_s=flops_per_s,
        microbatch=1,
        activation_bytes=costs.activation_bytes(config, **sizes),
        # An embedding is a look-up: no FLOPs, and little time.
        embed=Part(parameters=embed),
        layers=tuple(parts(layer_config(config, number)) for number in range(config.num_layers)),
        head=Part(
            forward_s=head / flops_per_s,
            # Two products, for inputs and weights, of the forward's size.
            backward_s=2 * head / flops_per_s,
            parameters=both - embed,
        ),
    )
    return with_bottlenecks(counted, config)


def _layer(config: ModelConfig, *, remat: Remat, flops_per_s: float) -> Part:
    sizes = {"batch": 1, "sequence": config.sequence}
    backward = getattr(costs.layer_backward_flops(config, **sizes), remat)
    return Part(
        forward_s=costs.layer_forward_flops(config, **sizes) / flops_per_s,
        backward_s=backward / flops_per_s,
        parameters=costs.num_parameters(config, layers=1, embed=False, head=False),
        kept_bytes=getattr(costs.layer_residual_bytes(config, **sizes), remat),
    )


def with_bottlenecks(profile: Profile, config: ModelConfig) -> Profile:
    """Return a profile, and those of its sizes, with the bottlenecks of a model.

    A profile that has them stays as it is. Seconds are those of the layers: the projections take
    little next to them.
    """
    narrow = narrow_bytes(config, batch=profile.microbatch, sequence=config.sequence)
    if not narrow or profile.narrow_bytes:
        return profile
    more = [bottleneck_parameters(config, layers=range(n, n + 1)) for n in range(config.num_layers)]
    return replace(
        profile,
        layers=tuple(
            replace(layer, parameters=layer.parameters + number)
            for layer, number in zip(profile.layers, more, strict=True)
        ),
        narrow_bytes=narrow,
        sizes=tuple(with_bottlenecks(size, config) for size in profile.sizes),
    )


def bytes_each(
    config: ModelConfig, optimizer: OptimizerConfig = _DEFAULT_OPTIMIZER
) -> BytesPerParameter:
    """Return the bytes per parameter: itself, its gradient and its moments, of one dtype.

    With master weights, the moments are of float32, as these are. Layers that compute in another
    dtype read a copy.

    Of Muon, matrices of layers have one moment and the rest has two: two are counted for all. Of
    Adafactor none are: the means of rows and columns are few. Where a model has matrices narrower
    than 128, which keep their whole second moment, that is too little.
    """
    num_bytes, num_moments = DTYPE_BYTES[config.param_dtype], optimizer.num_moments
    of_state, compute = num_moments * num_bytes, config.compute_dtype
    if optimizer.has_master_weights(config.param_dtype):
        of_state = (1 + num_moments) * DTYPE_BYTES["float32"]
    return BytesPerParameter(
        parameter=num_bytes,
        gradient=num_bytes,
        optimizer=of_state,
        copy=0 if compute == config.param_dtype else DTYPE_BYTES[compute],
        shards_optimizer=optimizer.sharded,
    )
