"""What depends on the backend of this host is refused by name before anything starts."""

import sys
from pathlib import Path
from typing import Any

import pytest

from jaxpipe import topo
from jaxpipe.config import check_here, config_from, notices_of
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.verdict import check_can_run
from jaxpipe.runtime.process.jax_backend import check_platforms
from tests.runtime.training import tiny_tree

CPU = {"JAX_PLATFORMS": "cpu"}
TWO = {**CPU, "XLA_FLAGS": "--a=b --xla_force_host_platform_device_count=2"}
NOWHERE = Path("nowhere")


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"model": {"attention": "flash", "compute_dtype": "bfloat16"}},
            r"^`model.attention` \(flash\) needs an NVIDIA GPU, .* set it to auto",
        ),
        (
            {"model": {"attention": "flash", "compute_dtype": "bfloat16", "dim": 18}},
            r"^`model.attention` \(flash\) needs heads whose width is a multiple of 8 .*, not 9",
        ),
        (
            {
                "model": {"attention": "flash", "compute_dtype": "bfloat16"},
                "train": {"sequence": 7},
            },
            r"^`model.attention` \(flash\) needs an even number of tokens in a sample, not 7",
        ),
        (
            {"mesh": {"data": 2}, "plan": {"microbatch": 2}},
            r"^`mesh.data` x .* = 2 must be at most the devices .* jax shows 1 on this host",
        ),
    ],
)
def test_what_this_host_cannot_compute_is_refused(
    sections: dict[str, dict[str, Any]], words: str
) -> None:
    config = config_from(tiny_tree(NOWHERE, NOWHERE, **sections))
    with pytest.raises(ConfigError, match=words):
        check_here(config, plan_from(config), CPU)
    paced = config_from(
        tiny_tree(NOWHERE, NOWHERE, model={"attention": "auto"}, run={"compute": "paced"})
    )
    check_here(paced, None, {"JAX_PLATFORMS": "cuda"})


def test_a_gpu_without_the_fused_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["jaxpipe.config.check_here"]  # the package has a function of that name
    monkeypatch.setattr(module, "num_jax_gpus", lambda _: 1)
    flash = {"attention": "flash", "compute_dtype": "bfloat16"}
    config = config_from(tiny_tree(NOWHERE, NOWHERE, model=flash))
    for kind in ("H100", None):  # None: a GPU that the table lacks
        monkeypatch.setattr(module, "gpu_here", lambda kind=kind: kind)
        check_here(config, None, {})
    monkeypatch.setattr(module, "gpu_here", lambda: "V100-SXM2")
    with pytest.raises(ConfigError, match=r"needs a GPU of Ampere or newer, .* has a V100-SXM2;"):
        check_here(config, None, {})


def test_devices_that_xla_is_told_to_show_count() -> None:
    config = config_from(tiny_tree(NOWHERE, NOWHERE, mesh={"data": 2}, plan={"microbatch": 2}))
    check_here(config, plan_from(config), TWO)


@pytest.mark.parametrize("platforms", ["cuda", "gpu", "cuda,rocm", "nonsense", "cpu,nonsense"])
def test_a_backend_that_jax_lacks_is_named(platforms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "jaxpipe.runtime.process.jax_backend"
    for name, value in (("num_jax_gpus", 0), ("find_spec", None), ("entry_points", ())):
        monkeypatch.setattr(f"{module}.{name}", lambda *_, value=value, **__: value)
    with pytest.raises(ConfigError, match=r"^`JAX_PLATFORMS` .* is missing; set it to cpu"):
        check_platforms({"JAX_PLATFORMS": platforms})
    for right in ("", "cpu", "cuda,cpu", " cpu , gpu"):
        check_platforms({"JAX_PLATFORMS": right})


def test_the_cores_of_this_machine_share_its_memory() -> None:
    plan = {"cluster": "this-machine:devices=4,memory_gib=0.01"}
    fits = config_from(tiny_tree(NOWHERE, NOWHERE, plan=plan))
    cluster = topo.load(plan["cluster"])
    check_can_run(fits, plan_from(fits), cluster, environment=CPU)
    large = config_from(tiny_tree(NOWHERE, NOWHERE, plan=plan, model={"dim": 1024}))
    with pytest.raises(PlanError, match=r"^`memory_gib` of this machine .* together, .* GiB"):
        check_can_run(large, plan_from(large), cluster, environment=CPU)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({}, []),
        ({"optimizer": {"warmup_steps": 8}}, ["`optimizer.warmup_steps` (8) is more than"]),
        (
            {
                "model": {"param_dtype": "bfloat16"},
                "optimizer": {"learning_rate": 1e-4, "master_weights": False},
            },
            ["`model.param_dtype` (bfloat16) rounds updates below 2^-9 of a parameter away"],
        ),
        ({"model": {"param_dtype": "bfloat16"}, "optimizer": {"learning_rate": 1e-4}}, []),
        ({"optimizer": {"warmup_steps": 8}, "run": {"compute": "paced"}}, []),
    ],
)
def test_surprises_have_a_line(sections: dict[str, dict[str, Any]], words: list[str]) -> None:
    lines = list(notices_of(config_from(tiny_tree(NOWHERE, NOWHERE, **sections))))
    assert len(lines) == len(words)
    assert all(line.startswith(start) for line, start in zip(lines, words, strict=True))


def test_routing_groups_divide_the_microbatch() -> None:
    model = {"experts": 2, "routing_groups": 2}
    right = config_from(tiny_tree(NOWHERE, NOWHERE, model=model, plan={"microbatch": 2}))
    assert plan_from(right).microbatch == 2
    wrong = config_from(tiny_tree(NOWHERE, NOWHERE, model=model))
    with pytest.raises(ConfigError, match=r"^`model.routing_groups` \(2\) must divide `plan.micro"):
        plan_from(wrong)
