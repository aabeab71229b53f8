"""Compilations are counted, with those that the compile cache has answered."""

import uuid
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from jaxpipe.runtime.compile_count import counted_compiles


@pytest.fixture
def kept() -> Iterator[None]:
    """Let this process write to the cache whatever it compiles; other tests keep little of it."""
    least_s = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    yield
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least_s)


@pytest.mark.slow
def test_a_second_compilation_comes_from_the_cache(kept: None) -> None:
    name = f"step_{uuid.uuid4().hex}"  # the cache of the tests does not know it

    def compile_again() -> None:
        def step(x: jax.Array) -> jax.Array:
            return x * 3

        step.__name__ = name
        jax.jit(step).lower(np.zeros(3, np.float32)).compile()

    compile_again()
    jax.clear_caches()
    with counted_compiles() as count:
        compile_again()
    assert count.num_requests == count.num_hits > 0
    with counted_compiles() as count:
        name += "_other"
        compile_again()
    assert count.num_requests > count.num_hits
