"""The table of GPUs."""

import pytest

from jaxpipe.topo import Precision, gpu


@pytest.mark.parametrize(
    ("name", "precision", "tflops", "memory_gib"),
    [
        ("V100-SXM2", Precision.FP16, 125, 16),
        ("A40", Precision.BF16, 149.7, 48),
        ("H100", Precision.FP8, 1978.9, 80),
        ("H200", Precision.TF32, 494.7, 141),
    ],
)
def test_peaks_and_memory(name: str, precision: Precision, tflops: float, memory_gib: int):
    found = gpu(name)
    assert found.peak_flops_per_s(precision) == pytest.approx(tflops * 1e12)
    assert found.memory_bytes == memory_gib * 2**30
    assert found.source


def test_a_precision_that_the_gpu_lacks_is_refused():
    with pytest.raises(
        ValueError, match=r"`bf16` is not supported by a V100-SXM2: choose from fp32, fp16"
    ):
        gpu("V100-SXM2").peak_flops_per_s(Precision.BF16)


def test_an_unknown_gpu_is_refused():
    with pytest.raises(ValueError, match=r"not 'H900': choose from V100-SXM2, "):
        gpu("H900")
