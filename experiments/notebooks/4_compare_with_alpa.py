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
# split. `jaxpipe autoshard` takes Megatron's strategies or searches one, compiles the step, and
# counts its collectives. Nothing runs here; times are predicted for V100s.

# %%
import json
import subprocess
import sys


def sharded(*axes: str) -> dict:
    """Return what `jaxpipe autoshard` tells of two layers on four devices."""
    words = ("--model", "tiny", "--layers", "2", "--mesh", "4", "--batch", "8", *axes, "--json")
    command = (sys.executable, "-m", "jaxpipe", "autoshard", "--dtype", "float32", *words)
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


cases = {
    "split the batch": sharded("--dp", "4"),
    "split operators": sharded("--op", "4"),
    "as searched": sharded(),
}

# %% [markdown]
# Splitting the batch sums gradients once a step; splitting operators sums activations in every
# layer. The search weighs both for the links that it is given.

# %%
for name, told in cases.items():
    counts = {kind: count for kind, count in told["counts"].items() if count}
    size = told["arguments_bytes"] / 1e6
    print(f"{name:<16} {told['dp']} x {told['op']}  {size:6.2f} MB a device  {counts}")

# %% [markdown]
# A pipeline sends only what crosses its cuts. Per step and per boundary that is one activation
# and one gradient of it for each microbatch: over a slow link this is what counts.

# %%
from models import GptConfig, activation_bytes, load_preset, parameter_bytes

config = GptConfig(**load_preset("tiny"))
crossing = 2 * activation_bytes(config, batch=8, sequence=config.sequence)
gradients = parameter_bytes(config, layers=2, embed=True, head=True)
print(f"pipeline, each boundary:       {crossing / 1e6:6.2f} MB a step")
print(
    f"data parallelism, each device: {2 * 3 / 4 * gradients / 1e6:6.2f} MB a step, in a ring of 4"
)
