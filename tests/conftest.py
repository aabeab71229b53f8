"""What all tests share: types checked at run time, one cache of what XLA compiled, no timing."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook(["models", "jaxpipe.runtime", "jaxpipe.comm"], typechecker="beartype.beartype")

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

_CACHE = pytest.StashKey[TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Let ranks, replicas and tests that compile the same stage do it once; jax reads these."""
    config.stash[_CACHE] = TemporaryDirectory()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = config.stash[_CACHE].name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small dataset."""
    from tests.runtime.training import write_dataset

    return write_dataset(tmp_path_factory.mktemp("data"))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the cache."""
    config.stash[_CACHE].cleanup()
