# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 7. Shard your own mixture of experts
#
# A model with experts leaves a choice: replicate the experts, split them over the devices and move
# tokens by all-to-alls, or shard all parameters. Which is fastest depends on the model, the batch
# and the links. HiDup's search decides for each operator, and lets two halves of the batch overlap:
# collectives of one half run under products of the other.
#
# Describe your model by its sizes. Nothing is compiled until the last section.

# %%
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt

from jaxpipe.baselines.autoshard.duplex import CostModel, DeviceSpeed, published_profiles, search
from jaxpipe.baselines.autoshard.duplex.describe import count_step_collectives, draw_found
from jaxpipe.baselines.systems import System
from jaxpipe.baselines.autoshard.duplex.duplex_systems import bucket_bytes, strategy_of
from jaxpipe.baselines.autoshard.duplex.timeline import Overlap, whole_step_s
from jaxpipe.baselines.gpt.model_sizes import duplex_graph
from jaxpipe.models import GptConfig
from jaxpipe.pictures.palette import SERIES

mine = GptConfig(
    num_layers=2,  # pairs of a dense layer and one with experts
    dim=1024,
    num_heads=16,
    sequence=512,
    vocabulary=32000,
    tied=False,
    experts=16,
    experts_per_token=2,
    capacity_factor=1.5,
)
graph = duplex_graph(mine, batch=64, dtype="float32")
print(f"{len(graph.operators)} operators; those of the layer with experts:")
for operator in graph.operators:
    if operator.name.startswith("layer1."):
        print(f"  {operator.name:<18} {operator.equation}")

# %% [markdown]
# An equation says what can be split. `ebcd,edf->ebcf` are all experts at once: split `e`, and each
# device has some experts and the tokens for them; split `b`, and each has all experts and its own
# tokens.
#
# ## Search
#
# The search needs the speed of a device, and of collectives between all of them. These profiles
# were published; `mpirun -n 8 jaxpipe profile --collectives -o links.toml` measures your own.

# %%
device = DeviceSpeed(flops_per_s=14e12, memory_bytes_per_s=900e9, update_bytes=80)
links = {
    "NVLink": published_profiles()["v100-1x8"],
    "10 Gb/s": published_profiles()["v100-2x4-10gbps"],
}
models = {
    name: CostModel(graph=graph, device=device, profile=profile) for name, profile in links.items()
}
found = {name: search(model) for name, model in models.items()}
for name, each in found.items():
    counts = count_step_collectives(each.strategy)
    print(f"{name:<8} {1e3 * each.seconds:6.0f} ms a step, {each.search_s:.2f} s to search")
    print("        ", {str(kind): number for kind, number in sorted(counts.items())})

# %% [markdown]
# ## Read a strategy
#
# A line is an operator: the forms of its operands and of its result, and what moves before it. `F`
# is whole on every device, `S0` split along its first dim, `P` partial sums. A dash begins a stage:
# its collectives run while the other half computes. `parameter S0->F` is stored in shards and
# gathered, `F->F` is replicated and its gradient all-reduced, `S0->S0` never moves.

# %%
print(draw_found(models["10 Gb/s"], found["10 Gb/s"]))

# %% [markdown]
# ## Compare with systems
#
# The same costs price what others do: DDP with its buckets, ZeRO-3, GShard. Their steps are not
# halved, and overlap what each of them overlaps.

# %%
OVERLAPS = {
    System.DDP: Overlap(bucket_bytes=bucket_bytes(System.DDP)),
    System.ZERO3: Overlap(prefetches=True),
    System.GSHARD: Overlap(),
}


def seconds(name: str) -> dict[str, float]:
    """Return the simulated seconds of a step of each system."""
    whole = replace(models[name], halves=1)
    times = {
        system.value: whole_step_s(
            whole, strategy_of(system, graph, num_devices=whole.profile.devices), overlap
        )
        for system, overlap in OVERLAPS.items()
    }
    return {**times, "searched": found[name].seconds}


figure, panels = plt.subplots(1, len(links), figsize=(8, 2.6), layout="constrained")
for panel, name in zip(panels, links, strict=True):
    times = seconds(name)
    panel.barh(list(times), [1e3 * each for each in times.values()], color=SERIES[: len(times)])
    panel.invert_yaxis()
    panel.set_title(f"8 devices, {name}")
    panel.set_xlabel("ms a step (simulated)")

# %% [markdown]
# ## Run it
#
# The command does the same for a preset, writes the strategy, and runs it: here on two devices that
# this machine emulates. It says how far the loss and the gradients are from those of one device.

# %%
scratch = TemporaryDirectory()
folder = Path(scratch.name)
(folder / "links.toml").write_text(
    "[mine]\ndevices = 2\nlatency_s = 1e-5\nall_gather = 1e8\nall_reduce = 1e8\n"
    "reduce_scatter = 1e8\nall_to_all = 1e10\n"
)


def autoshard(*words: str) -> str:
    """Return what the command prints."""
    given = ("--model", "gpt-moe-tiny", "--layers", "1", "--batch", "8", "--dtype", "float32")
    command = (sys.executable, "-m", "jaxpipe", "autoshard", *words, *given)
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return ran.stdout


print(autoshard("duplex", "--links", "links.toml", "-o", "strategy.json"))
print(autoshard("execute", "strategy.json", "--steps", "1"))

# %% [markdown]
# The balance loss of this preset is that of each half, so that the last digits differ from one
# device; without it (`balance_loss = 0`) they agree up to rounding.
#
# ## Next
#
# - `jaxpipe compare my.toml --against hidup,gshard,ddp` trains with them, over real ranks.
# - `experiments/hidup` compares the same costs with 116 published bars.
# - For a model of your own, put `jax.named_scope`s around its operators and say which scope and
#   which labels each parameter has (`jaxpipe.baselines.autoshard.duplex_step.ModelNames`).
