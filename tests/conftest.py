"""What all tests share: types checked at run time, and one cache of what XLA compiled."""

from tempfile import TemporaryDirectory

import pytest
from jaxtyping import install_import_hook

install_import_hook(["models", "jaxpipe.runtime", "jaxpipe.comm"], typechecker="beartype.beartype")

_CACHE = pytest.StashKey[TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Let replicas and tests that compile the same stage do it once."""
    import jax

    config.stash[_CACHE] = TemporaryDirectory()
    jax.config.update("jax_compilation_cache_dir", config.stash[_CACHE].name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the cache."""
    config.stash[_CACHE].cleanup()
