"""The profile of a model on the cores of this machine: measured once, kept, read without jax.

::

    kept_profile(task) ──► Profile, or None      a file of the user's cache, in milliseconds
    measured_profile(task) ──► MeasuredApart     processes of their own: 10 s for a small model

One process for each core, all busy at the same time, as ranks are: two cores share the memory.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from jaxpipe.plan.cost import Profile
from jaxpipe.profile.machine_speed import machine_key
from jaxpipe.profile.measuring_process import MeasuredApart, Measurement, measure_apart
from jaxpipe.profile.profile_task import ProfileTask
from jaxpipe.runtime.storage.kept_file import KeptFile
from jaxpipe.topo.machine_limits import usable_cores

_FORMAT = 7
"""Of the profile and the method: raise it where seconds would differ."""


def kept_profile(task: ProfileTask, environment: Mapping[str, str] = os.environ) -> Profile | None:
    """Return the profile that was measured on this machine, None if none was. Imports no jax."""
    return _file(task, environment).read(Profile)


def measured_profile(
    task: ProfileTask,
    *,
    keep: bool = True,
    environment: Mapping[str, str] = os.environ,
    observe: Callable[[str], None] = lambda _: None,
) -> MeasuredApart[Profile]:
    """Measure the profile of a model on the cores of this machine, and keep it.

    It is not kept where other processes have computed on these cores: then it is measured again the
    next time.
    `observe` is called with what is done next, with its part of the whole. Cost: about 10 s for a
    small model, mostly compilation; the memory of its stages for each core.

    Raises:
        ConfigError: the measurement failed.
    """
    words = (msgspec.json.encode(task.fields()).decode(),)
    measurement = Measurement(module="jaxpipe.profile.profile_process", words=words)
    measured = measure_apart(measurement, Profile, cores=usable_cores(), observe=observe)
    trees = [msgspec.to_builtins(profile) for profile in measured.value]
    profile = msgspec.convert(mean_tree(trees), Profile)
    if keep and measured.is_alone:
        _file(task, environment).write(profile)
    return MeasuredApart(value=profile, share=measured.share)


def mean_tree(trees: list[Any]) -> Any:
    """Return plain data with the means of floats; everything else is that of the first.

    >>> mean_tree([{"a": [1.0, 5], "b": "x"}, {"a": [2.0, 7], "b": "y"}])
    {'a': [1.5, 5], 'b': 'x'}
    """
    first = trees[0]
    if isinstance(first, dict):
        return {key: mean_tree([tree[key] for tree in trees]) for key in first}
    if isinstance(first, list | tuple):
        return [mean_tree(list(members)) for members in zip(*trees, strict=True)]
    return sum(trees) / len(trees) if isinstance(first, float) else first


def _file(task: ProfileTask, environment: Mapping[str, str]) -> KeptFile:
    key = {"machine": machine_key(environment), "profile": _FORMAT, "task": task.fields()}
    return KeptFile(kind="profile", key=key, environment=environment)
