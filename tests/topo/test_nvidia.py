"""What nvidia-smi prints of the links between GPUs."""

import pytest

from jaxpipe.topo.nvidia import gpu_link_speed, parse_gpu_links

FOUR = """
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tSYS\tSYS\tPIX\t0-15\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tSYS\tPXB\t0-15\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV12\tSYS\t16-31\t1\t\tN/A
GPU3\tSYS\tSYS\tNV12\t X \tSYS\t16-31\t1\t\tN/A
NIC0\tPIX\tPXB\tSYS\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


def test_the_matrix_is_found():
    assert parse_gpu_links(FOUR) == (
        ("X", "NV12", "SYS", "SYS"),
        ("NV12", "X", "SYS", "SYS"),
        ("SYS", "SYS", "X", "NV12"),
        ("SYS", "SYS", "NV12", "X"),
    )


def test_one_gpu_is_a_matrix():
    assert parse_gpu_links("\tGPU0\tCPU Affinity\nGPU0\t X \t0-15\n") == (("X",),)


@pytest.mark.parametrize(
    "text", ["", "No devices were found", "GPU0 GPU1\nGPU0 X NV1\n", "GPU0 GPU1\nGPU0 X\nGPU1 X\n"]
)
def test_other_text_is_refused(text: str):
    with pytest.raises(ValueError, match="must be the output of `nvidia-smi topo -m`"):
        parse_gpu_links(text)


def test_more_nvlinks_are_faster_and_longer_ways_slower():
    kinds = ("NV12", "NV1", "PIX", "SYS")
    gbps = [gpu_link_speed(kind).bandwidth_gbps for kind in kinds]
    assert gbps == [2400, 200, 126, 63]
    assert [gpu_link_speed(kind).bandwidth_gbps for kind in ("PXB", "PHB", "NODE")] == [126] * 3


def test_an_unknown_link_is_refused():
    with pytest.raises(ValueError, match=r"'NV9{38}' is not a link between GPUs"):
        gpu_link_speed(f"NV{'9' * 5000}")
    with pytest.raises(ValueError, match="'NET' is not a link between GPUs: choose from NV1, NV2"):
        gpu_link_speed("NET")
