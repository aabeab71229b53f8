"""A fixture of the command line's tests: a configuration file of a tiny run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.topo.toml_text import toml_text
from tests.runtime.training import tiny_tree

WriteConfig = Callable[..., Path]


@pytest.fixture
def write_config(tmp_path: Path, dataset: Path) -> WriteConfig:
    """Return a function that writes the tiny configuration, changed by sections, to a file."""

    def write(**sections: dict[str, Any]) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(toml_text(tiny_tree(tmp_path / "run", dataset, **sections)))
        return path

    return write
