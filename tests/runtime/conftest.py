"""Fixtures of the runtime's tests."""

from pathlib import Path

import pytest

from tests.runtime.training import write_dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small dataset."""
    return write_dataset(tmp_path_factory.mktemp("data"))
