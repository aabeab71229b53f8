"""Fixtures of the command line's tests: a dataset, and a configuration file of a tiny run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.toml import to_toml
from tests.runtime.training import tiny_tree, write_dataset

WriteConfig = Callable[..., Path]


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small dataset."""
    return write_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture
def write_config(tmp_path: Path, dataset: Path) -> WriteConfig:
    """Return a function that writes the tiny configuration, changed by sections, to a file."""

    def write(**sections: dict[str, Any]) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(to_toml(tiny_tree(tmp_path / "run", dataset, **sections)))
        return path

    return write
