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
# What do the parts of GPT-3 XL take on this machine? One block of its width, its embedding and
# its head are measured as a rank of a run computes them: warm, repeated, with spread. To be done
# in a minute on two cores, the sample is short, and the vocabulary small.

# %%
import time
from dataclasses import replace

from jaxpipe.profile import TIMED, MeasureSettings, as_profile, measure_gpt
from jaxpipe.runtime.settings import Remat
from models import GptConfig, load_preset

config = replace(GptConfig(**load_preset("gpt-xl-24")), sequence=64, vocabulary=512)
settings = MeasureSettings(remat=Remat.FULL, repeats=5, budget_s=2.0)
measured = measure_gpt(config, settings=settings, clock=time.perf_counter, observe=print)

# %% [markdown]
# Medians in milliseconds. A backward of a rematerialised block takes about three forwards; its
# two halves, which zero-bubble schedules place apart, are about equal.

# %%
print(f"{'':<16}" + "".join(f"{op:>17}" for op in TIMED))
for part in measured.kinds:
    medians = "".join(f"{1e3 * part.timings[op].median_s:17.2f}" for op in TIMED)
    print(f"{part.name:<16}{medians}")

# %% [markdown]
# What of the device's own matrix products does a block reach, and what must it hold?

# %%
block = measured.kinds[1]
print(f"{measured.device}: matrix products reach {measured.peak_flops_per_s / 1e9:.1f} GFLOP/s")
print(f"a block reaches {block.flops_per_s / measured.peak_flops_per_s:.0%} of that")
print(
    f"{block.kept_bytes / 1e6:.1f} MB kept for its backward, {block.live_bytes / 1e6:.0f} MB held"
)

# %% [markdown]
# A stage is the sum of its parts: here is one of six blocks, and the last one, with the head.
# `jaxpipe plan --profile` takes the same numbers from a file, which `jaxpipe profile` writes.

# %%
profile = as_profile(measured)
for stage in (1, 3):
    part = profile.stage((6, 6, 6, 6), stage)
    print(f"stage {stage}: forward {part.forward_s:.3f} s, backward {part.backward_s:.3f} s")
