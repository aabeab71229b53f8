"""Measured costs of a GPT by kind of layer and by stage, and its profile for the planner."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path

import jax
import msgspec

from jaxpipe.collective import CodingRates
from jaxpipe.errors import ConfigError
from jaxpipe.models import ModelConfig, costs, layer_config
from jaxpipe.models.bottleneck_costs import without_bottlenecks
from jaxpipe.plan import Cut
from jaxpipe.plan.cost import Part, Profile
from jaxpipe.plan.partition import layers_of
from jaxpipe.profile.coding import measure_coding
from jaxpipe.profile.measure_config import MeasureConfig
from jaxpipe.profile.model_ends import Ends
from jaxpipe.profile.part import MEASUREMENTS_OF_PART, PartCosts, measure_part
from jaxpipe.profile.timing import Clock, matrix_peak_flops_per_s
from jaxpipe.runtime.data.dataset.dataset import InputShape
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.model import Model
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.schedule import Op

_CACHE_BYTES = 256 * 2**20
"""More than the caches of most processors, H200 (50 MB) and EPYC (32 MB for each complex)."""
_MAX_BLOCKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GptCosts:
    """The costs of a GPT on one device.

    `kinds` are the embedding, one block, and the head with its loss; `stages` those of the
    partition that was measured. `device` is its name in `jaxpipe.topo.gpu`, if it is listed there;
    `peak_flops_per_s` is the speed of matrix products in the model's dtype; `coding` the seconds
    of codecs on the host.
    """

    config: ModelConfig
    settings: MeasureConfig
    sequence: int
    device: str
    peak_flops_per_s: float
    kinds: tuple[PartCosts, PartCosts, PartCosts]
    stages: tuple[PartCosts, ...]
    coding: CodingRates


def measure_gpt(
    config: ModelConfig,
    *,
    cut: Cut = (),
    settings: MeasureConfig,
    clock: Clock,
    observe: Callable[[str], None],
) -> GptCosts:
    """Measure each kind of layer of a GPT, and optionally the stages of the partition `cut`.

    Of blocks, some are measured in a row (`blocks_in_a_row`), and the costs are those of one.

    The partition may have fewer layers than the model; of equal stages only the first is measured.
    Only the layers of the partition are initialised, so that a few layers of a large model fit.
    `observe` is called before each of `num_measurements` with its description.

    Raises:
        ConfigError: the sequence is longer than the model's, or the partition has more layers.
    """
    from jaxpipe.models import build_model

    sequence = settings.sequence or config.sequence
    if sequence > config.sequence:
        raise ConfigError(
            f"`sequence` must be at most the {config.sequence} of the model, not {sequence}"
        )
    if sum(cut) > config.num_layers or min(cut, default=1) < 1:
        raise ConfigError(
            f"`layers` must be at least 1 for each stage and {config.num_layers} together, "
            f"not {','.join(map(str, cut))}"
        )
    measure = partial(_measured, config, settings=settings, clock=clock, observe=observe)
    model = build_model(without_bottlenecks(config))
    blocks = blocks_in_a_row(config)
    kinds = (
        measure(Ends(model), (1, 1), 0, name="embedding", layers=range(0)),
        # Stage 1 of three has neither end, so that blocks are measured alone.
        measure(model, (0, blocks, 0), 1, name="block", layers=range(blocks)).divided(blocks),
        measure(Ends(model), (1, 1), 1, name="head and loss", layers=range(0)),
    )
    stages = tuple(
        measure(model, cut, stage, name=_stage_name(cut, stage), layers=layers_of(cut, stage))
        for stage in _unlike(config, cut)
    )
    observe("codecs of messages")
    coding = measure_coding(settings, clock=clock)
    observe("matrix products")
    with jax.default_matmul_precision(settings.matmul_precision.jax_name):
        peak_flops_per_s = matrix_peak_flops_per_s(dtype=config.compute_dtype, clock=clock)
    return GptCosts(
        config=config,
        settings=settings,
        sequence=sequence,
        # "NVIDIA H200" is H200 in `jaxpipe.topo.gpu`.
        device=jax.local_devices()[0].device_kind.removeprefix("NVIDIA "),
        peak_flops_per_s=peak_flops_per_s,
        kinds=kinds,
        stages=stages,
        coding=coding,
    )


def num_measurements(config: ModelConfig, cut: Cut) -> int:
    """Return how many measurements `measure_gpt` says, of three kinds of layers and the stages.

    >>> from jaxpipe.models import preset_config
    >>> gpt2 = preset_config("gpt2")
    >>> num_measurements(gpt2, ()), num_measurements(gpt2, (2, 2))
    (14, 22)
    """
    return MEASUREMENTS_OF_PART * (3 + len(_unlike(config, cut))) + 2


def blocks_in_a_row(config: ModelConfig) -> int:
    """Return how many blocks are measured one after the other, as a stage computes them.

    As many as it takes that their parameters do not stay in the cache: of a model whose layers are
    large, one. At most eight, which bounds the time of compilation.
    """
    block_bytes = 4 * costs.num_parameters(config, layers=1, embed=False, head=False)
    return min(config.num_layers, _MAX_BLOCKS, ceil(_CACHE_BYTES / block_bytes))


def as_profile(measured: GptCosts) -> Profile:
    """Return the profile of the planner and the simulator: medians, for every layer of the model.

    Raises:
        ConfigError: a shorter sequence than the model's was measured.
    """
    config = measured.config
    if measured.sequence != config.sequence:
        raise ConfigError(
            f"`sequence` must be that of the model for a profile, {config.sequence}, not "
            f"{measured.sequence}; measure that, or a model with a shorter one"
        )
    embedding, block, head = measured.kinds
    count = partial(costs.num_parameters, config)
    embed = count(layers=0, embed=True, head=False)
    microbatch = measured.settings.microbatch
    layer = _part(block, parameters=block.parameters)
    # Where layers differ, they count in proportion to their FLOPs.
    flops = map(sum, _flops(config, range(config.num_layers), measured.settings))
    block_flops = block.forward_flops + block.backward_flops
    return Profile(
        device=measured.device,
        flops_per_s=block.flops_per_s,
        microbatch=microbatch,
        activation_bytes=costs.activation_bytes(
            config, batch=microbatch, sequence=measured.sequence
        ),
        embed=_part(embedding, parameters=embed),
        layers=tuple(
            replace(layer.scaled(number / block_flops), kept_bytes=layer.kept_bytes)
            for number in flops
        ),
        # head - embed: of a tied head, the table counts with the embedding.
        head=_part(head, parameters=count(layers=0, embed=True, head=True) - embed),
        coding=measured.coding,
    )


def write_costs(measured: GptCosts, path: Path) -> None:
    """Write measured costs as JSON, which `jaxpipe.plan.cost.read_profile` reads.

    The fields are those of `jaxpipe.plan.cost.Profile`, which are medians; readers of profiles
    skip the additional key `measured`, which has every part with its spread, memory and FLOPs.

    Raises:
        ConfigError: a shorter sequence than the model's was measured.
    """
    tree = msgspec.to_builtins(as_profile(measured)) | {"measured": msgspec.to_builtins(measured)}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n")


def _part(measured: PartCosts, *, parameters: int) -> Part:
    of_input_s, of_weights_s = (
        measured.timings[op].median_s for op in (Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
    )
    # The halves one after the other may take longer than the whole backward, so scale them to it.
    later = of_weights_s / (of_input_s + of_weights_s)
    # A tied head is measured with the embedding table, and counted without it.
    fraction = parameters / measured.parameters
    return Part(
        forward_s=measured.forward_s,
        backward_s=measured.backward_s,
        parameters=parameters,
        kept_bytes=measured.kept_bytes,
        backward_weight_s=later * measured.backward_s,
        update_s=fraction * measured.timings[Op.UPDATE].median_s,
    )


def _measured(  # noqa: PLR0913 - which part of which model, and how
    config: ModelConfig,
    model: Model,
    cut: Cut,
    stage: int,
    *,
    name: str,
    layers: range,
    settings: MeasureConfig,
    clock: Clock,
    observe: Callable[[str], None],
) -> PartCosts:
    sequence = settings.sequence or config.sequence
    functions = StageFunctions(
        stage=Stage(
            model=model,
            index=stage,
            num_stages=len(cut),
            layers=layers_of(cut, stage),
            remat=settings.remat,
            loop=settings.loop,
        ),
        work=Work(
            microbatch=settings.microbatch,
            sequence=sequence,
            batch=settings.microbatch,
            num_steps=1,
            seed=settings.seed,
            labelled=InputShape.of_model(picture=config.picture, sequence=sequence)
            if config.classes
            else None,
        ),
        optimizer=OptimizerConfig(),
    )
    sizes = {"batch": settings.microbatch, "sequence": sequence}
    head = costs.head_forward_flops(config, **sizes) if functions.stage.is_last else 0
    forward, backward = (
        sum(flops) for flops in zip((0, 0), *_flops(config, layers, settings), strict=True)
    )
    return measure_part(
        functions,
        name=name,
        forward_flops=forward + head,
        # The head's backward is two products as large as its forward's.
        backward_flops=backward + 2 * head,
        settings=settings,
        clock=clock,
        observe=observe,
    )


def _flops(
    config: ModelConfig, layers: range, settings: MeasureConfig
) -> Iterator[tuple[int, int]]:
    """Yield the FLOPs of the forward and the backward of each layer."""
    sizes = {"batch": settings.microbatch, "sequence": settings.sequence or config.sequence}
    for number in layers:
        layer = layer_config(config, number)
        forward = costs.layer_forward_flops(layer, **sizes)
        # By the name of the policy: `Remat` and `ByRemat` agree.
        yield forward, getattr(costs.layer_backward_flops(layer, **sizes), settings.remat)


def _stage_name(cut: Cut, stage: int) -> str:
    ends = [
        name
        for name, holds in (("embedding", stage == 0), ("head", stage == len(cut) - 1))
        if holds
    ]
    with_ends = f" and {', '.join(ends)}" if ends else ""
    return f"stage {stage}: {cut[stage]} layers{with_ends}"


def _unlike(config: ModelConfig, cut: Cut) -> list[int]:
    """Return the stages that differ from all before them: by their ends, or their layers.

    >>> from jaxpipe.models import preset_config
    >>> _unlike(preset_config("gpt2"), (2, 2, 2, 3, 2))
    [0, 1, 3, 4]
    """
    last = len(cut) - 1
    # Downwards: of equal middles, the first stage stays in the dictionary.
    middles = {
        tuple(layer_config(config, layer) for layer in layers_of(cut, stage)): stage
        for stage in range(last - 1, 0, -1)
    }
    return sorted({0, *middles.values(), last}) if cut else []
