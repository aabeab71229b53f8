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
# # 4. Compare with Alpa-style sharding
#
# The other way to train on several devices is one program for all of them, with every operator
# split. Within a machine that is often the better one; over slow links it is a matter of how many
# bytes have to cross them, and that can be counted before anything runs.
#
# `jaxpipe autoshard` takes Megatron's strategies or searches one, as Alpa does, compiles the step
# with its collectives written out, and counts them. Nothing is trained here.

# %%
import json
import subprocess
import sys

import matplotlib.pyplot as plt

from jaxpipe.pictures.palette import BLUE, VERMILION
from jaxpipe.models import GptConfig, activation_bytes, load_preset, parameter_bytes


def sharded(*words: str) -> dict:
    """Return what `jaxpipe autoshard` tells of two layers on four devices."""
    step = ("--model", "tiny", "--layers", "2", "--batch", "8", "--dtype", "float32", "--json")
    command = (sys.executable, "-m", "jaxpipe", "autoshard", *words, *step)
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


cases = {
    "split the batch": sharded("megatron", "--dp", "4"),
    "split operators": sharded("megatron", "--op", "4"),
    "as searched": sharded("search", "--mesh", "4"),
}

# %% [markdown]
# ## What each has to send
#
# Splitting the batch sums gradients once a step; splitting operators sums activations in every
# layer, and each device holds less. The search weighs both for the links that it is given.

# %%
for name, told in cases.items():
    counts = {kind: count for kind, count in told["counts"].items() if count}
    size = told["arguments_bytes"] / 1e6
    print(f"{name:<16} {told['dp']} x {told['op']}  {size:6.2f} MB a device  {counts}")

# %% [markdown]
# ## And a pipeline?
#
# It sends only what crosses its cuts: one activation and one gradient of it for each sample. Data
# parallelism sends each gradient nearly twice, in a ring. The one grows with the batch, the other
# with the model: for each width there is a batch below which the pipeline sends less.

# %%
config = GptConfig(**load_preset("tiny"))
batches = [2**power for power in range(11)]
crossing = [
    2 * activation_bytes(config, batch=batch, sequence=config.sequence) / 1e6 for batch in batches
]
parameters = parameter_bytes(config, layers=2, embed=True, head=True)
ring = 2 * 3 / 4 * parameters / 1e6
figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.plot(batches, crossing, "o-", color=BLUE, label="pipeline, across a cut")
axes.axhline(ring, color=VERMILION, label="data parallelism, each of 4 devices")
axes.set_xscale("log", base=2)
axes.set_yscale("log")
axes.xaxis.set_major_formatter("{x:g}")
axes.yaxis.set_major_formatter("{x:g}")
axes.set_xlabel("samples in a step")
axes.set_ylabel("MB a step")
axes.legend()
axes.grid(alpha=0.3)
print(f"a batch of 8: {crossing[3]:.2f} MB across a cut, {ring:.2f} MB in a ring of 4")

# %% [markdown]
# This model is tiny, so the ring wins early. A larger one is another matter.

# %%
large = GptConfig(**load_preset("gpt-xl-24"))
gradients = parameter_bytes(large, layers=large.num_layers, embed=True, head=True)
sample = 2 * activation_bytes(large, batch=1, sequence=large.sequence)
print(
    f"GPT-3 XL: a pipeline sends less than data parallelism on 4 devices up to a batch of "
    f"{int(2 * 3 / 4 * gradients / sample)}"
)

# %% [markdown]
# ## Next
#
# - `jaxpipe compare my.toml --against alpa,megatron,zero3,ddp` trains with all of them, over the
#   same samples, and writes one table.
# - `experiments/spmd_links` did so over links of 1 and 0.3 Gbps.
# - [5. Run MPI ranks from a cell](5_run_mpi_ranks.ipynb) looks at how bytes move.
