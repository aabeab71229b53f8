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
# # 1. Profile a stage
#
# A plan is as good as what it knows of the model: the seconds of each layer. Counted FLOPs are a
# first guess; what a device reaches of them is a matter of shapes, formats and memory. So here the
# parts of GPT-3 XL are measured on the device at hand, as a rank of a run computes them: warm,
# repeated, with spread.
#
# One block of its width, its embedding, and its head with the loss. To be done in a minute on two
# cores, the sample is short, and the vocabulary small.

# %%
import time
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np

from jaxpipe.pictures.palette import SERIES
from jaxpipe.profile.gpt_parts import as_profile, measure_gpt
from jaxpipe.profile.measure_config import MeasureConfig
from jaxpipe.profile.part import TIMED
from jaxpipe.schedule import Remat
from jaxpipe.models import GptConfig, load_preset

config = replace(GptConfig(**load_preset("gpt-xl-24")), sequence=64, vocabulary=512)
settings = MeasureConfig(remat=Remat.FULL, repeats=3, budget_s=1.0)
measured = measure_gpt(
    config, settings=settings, clock=time.perf_counter, observe=lambda words: None
)

# %% [markdown]
# ## Where the time of a microbatch goes
#
# Bars are medians, whiskers the tenth and the ninetieth percentile. A backward of a rematerialised
# block takes about three forwards. Its two halves, which zero-bubble schedules place apart, are the
# gradient of the input and that of the weights.

# %%
figure, axes = plt.subplots(figsize=(9, 3.5), layout="constrained")
width = 1 / (len(measured.kinds) + 1)
for number, part in enumerate(measured.kinds):
    timings = [part.timings[op] for op in TIMED]
    low, middle, high = (
        1e3 * np.array([getattr(each, name) for each in timings])
        for name in ("p10_s", "median_s", "p90_s")
    )
    at = np.arange(len(TIMED)) + number * width
    spread = np.maximum([middle - low, high - middle], 0)
    axes.bar(at, middle, width, yerr=spread, capsize=2, label=part.name, color=SERIES[number])
axes.set_xticks(np.arange(len(TIMED)) + width, TIMED)
axes.set_yscale("log")
axes.yaxis.set_major_formatter("{x:g}")
axes.set_ylabel("milliseconds")
figure.legend(loc="outside upper center", ncols=3, frameon=False)  # not over the bars
axes.grid(axis="y", alpha=0.3)

# %% [markdown]
# ## What the device reaches, and what it has to hold
#
# The yardstick is measured too: a large matrix product in the model's own format.

# %%
block = measured.kinds[1]
print(f"{measured.device}: matrix products reach {measured.peak_flops_per_s / 1e9:.1f} GFLOP/s")
print(f"a block reaches {block.flops_per_s / measured.peak_flops_per_s:.0%} of that")
print(f"its backward needs {block.kept_bytes / 1e6:.1f} MB of a forward,")
print(f"and between the two {block.live_bytes / 1e6:.0f} MB are held, moments included")

# %% [markdown]
# ## From parts to stages
#
# A stage is the sum of its parts, so one profile is good for any cut. Here are the stages of an
# even cut, and of one that gives the last rank a block less, since it has the head. With the small
# vocabulary the head is light, and the even cut is the better one.

# %%
profile = as_profile(measured)
for cut in ((6, 6, 6, 6), (6, 6, 7, 5)):
    stages = [profile.stage(cut, number) for number in range(len(cut))]
    seconds = "  ".join(f"{stage.forward_s + stage.backward_s:6.3f}" for stage in stages)
    slowest = max(stage.forward_s + stage.backward_s for stage in stages)
    print(f"cut {cut}: {seconds} s each microbatch, the slowest takes {slowest:.3f} s")

# %% [markdown]
# ## Next
#
# - `jaxpipe profile --model gpt2 -o profile.json` does the same from the shell, for the model as it
#   is, and `jaxpipe plan --set paced.profile=profile.json` plans with it.
# - [2. Plan a cluster](2_plan_a_cluster.ipynb) takes such costs, and a network, and makes a plan.
