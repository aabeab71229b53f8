"""Speeds of the devices of a cluster: the part of their peak that training reaches."""

from dataclasses import replace

from jaxpipe.errors import ConfigError
from jaxpipe.models import ModelConfig
from jaxpipe.models.gpt_config import DTYPE_BYTES
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.topo import Cluster, Device
from jaxpipe.topo.gpu import Precision


def precision_of(
    config: ModelConfig,
    cluster: Cluster,
    *,
    matmul_precision: MatmulPrecision = MatmulPrecision.TF32,
) -> Precision:
    """Return the precision of matrix products: for 2 bytes, a format that all GPUs support.

    For float32 it is that of `run.matmul_precision`: TF32, if any GPU has it.

    >>> from jaxpipe import topo
    >>> from jaxpipe.models import preset_config
    >>> config = preset_config("gpt-xl-24")
    >>> precision_of(config, topo.load("case5-worldwide")).value  # a V100 has no bfloat16
    'fp16'
    """
    kinds = {device.gpu for device in cluster.devices}
    # GPUs without peaks are described by their speed alone.
    known = [gpu for gpu in kinds if gpu is not None and gpu.peaks]
    if DTYPE_BYTES[config.compute_dtype] > 2:
        has_tf32 = any(Precision.TF32 in dict(gpu.peaks) for gpu in known)
        is_tf32 = has_tf32 and matmul_precision is MatmulPrecision.TF32
        return Precision.TF32 if is_tf32 else Precision.FP32
    # bfloat16 first: it needs no loss scaling.
    everywhere = all(Precision.BF16 in dict(gpu.peaks) for gpu in known)
    return Precision.BF16 if known and everywhere else Precision.FP16


def with_speeds(
    cluster: Cluster,
    precision: Precision,
    *,
    fraction: float,
    float32_fraction: float | None = None,
    unknown_flops_per_s: float | None,
) -> Cluster:
    """Return the cluster with the effective FLOP/s of every device.

    A device that states them keeps them; one with a known peak reaches `fraction` of it, or
    `float32_fraction` if it computes in float32 because it has no TF32; any other device reaches
    `relative_speed` times `unknown_flops_per_s`.

    Raises:
        ConfigError: the speed of a device is unknown, and `unknown_flops_per_s` is None.
    """

    def with_speed(device: Device) -> Device:
        if device.effective_flops_per_s is not None:
            return device
        peak = device.peak(precision)
        if peak is not None:
            reached = fraction
            if float32_fraction is not None and _lacks_tf32(device, precision):
                reached = float32_fraction
            return replace(device, effective_flops_per_s=reached * peak)
        if unknown_flops_per_s is None:
            raise ConfigError(
                f"`paced.tflops` must be set: device {device.name!r} of cluster {cluster.name!r} "
                "states neither `gpu`, `tflops` nor `effective_tflops`; set it, or add one of them "
                "to the file of the cluster"
            )
        reached = device.relative_speed * unknown_flops_per_s
        return replace(device, effective_flops_per_s=reached, relative_speed=1.0)

    return replace(cluster, devices=tuple(with_speed(device) for device in cluster.devices))


def _lacks_tf32(device: Device, precision: Precision) -> bool:
    if device.gpu is None or device.peak_flops_per_s is not None:
        return False
    return device.gpu.product_precision(precision) is not precision
