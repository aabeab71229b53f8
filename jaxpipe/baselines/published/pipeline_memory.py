"""Memory of a stage of Megatron or PyTorch Pipe: whether a run fits its devices.

::

    parameters   weights, gradients and optimizer
    kept         of each microbatch in flight: inputs of layers, or all activations
    working      the activations of one layer, or of a stage, while its backward runs
    logits       on the last stage

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
section 4: sbh (10 + 24/t + 5as/(ht)) bytes for a layer in fp16, here twice as many in fp32.
"""

from jaxpipe.baselines.published.megatron import MegatronLayout
from jaxpipe.baselines.published.workload import Workload

_FP16_PARAMETER_BYTES, _FP32_PARAMETER_BYTES = 10, 16
"""With SGD and fp32 masters in fp16; with Adam in fp32."""
_RESERVED_BYTES = 1.5e9
"""CUDA, cuDNN and NCCL, and what fragmentation costs."""
_LOGIT_COPIES = 3
"""Logits, their softmax and their gradient."""


def peak_bytes(split: MegatronLayout, workload: Workload, *, num_replicas: int) -> float:
    """Return the memory that the fullest device of 1F1B needs."""
    return max(_stage_bytes(split, workload, stage, num_replicas) for stage in range(split.stages))


def _stage_bytes(split: MegatronLayout, workload: Workload, stage: int, num_replicas: int) -> float:
    num_microbatches = workload.batch // (num_replicas * workload.microbatch)
    in_flight = min(split.stages - stage, num_microbatches)
    layers = workload.num_layers / split.stages
    layer_bytes = _layer_bytes(split, workload)
    if workload.recompute:
        activations = in_flight * layers * workload.activation_bytes
        working = layer_bytes
    else:
        activations, working = in_flight * layers * layer_bytes, 0.0
    return (
        _parameter_bytes(split, workload, stage)
        + activations
        + working
        + _RESERVED_BYTES
        + (_logit_bytes(split, workload) if stage == split.stages - 1 else 0.0)
    )


def pipe_peak_bytes(workload: Workload, *, num_stages: int) -> float:
    """Return the memory of PyTorch Pipe: all inputs of stages, and one stage's activations.

    It recomputes whole stages, so all activations of a stage are there during its backward.
    """
    split = MegatronLayout(stages=num_stages, tensor=1)
    layers = workload.num_layers / num_stages
    activations = workload.batch / workload.microbatch * workload.activation_bytes
    working = layers * _layer_bytes(split, workload)
    last = _parameter_bytes(split, workload, num_stages - 1) + _logit_bytes(split, workload)
    return last + activations + working + _RESERVED_BYTES


def _layer_bytes(split: MegatronLayout, workload: Workload) -> float:
    s, h, t = workload.sequence, workload.dim, split.tensor
    fp16 = s * h * (10 + 24 / t + 5 * workload.heads * s / (h * t))
    return workload.microbatch * fp16 * workload.bytes_per_value / 2


def _parameter_bytes(split: MegatronLayout, workload: Workload, stage: int) -> float:
    num_bytes = workload.gradient_bytes(
        workload.num_layers // split.stages, is_first=stage in (0, split.stages - 1)
    )
    count = num_bytes / workload.bytes_per_value / split.tensor
    return count * (
        _FP32_PARAMETER_BYTES if workload.bytes_per_value == 4 else _FP16_PARAMETER_BYTES
    )


def _logit_bytes(split: MegatronLayout, workload: Workload) -> float:
    values = workload.microbatch * workload.sequence * workload.vocabulary / split.tensor
    # Cross entropy is computed in fp32.
    return _LOGIT_COPIES * 4 * values
