"""The peak memory of a process, in bytes on every system."""

import resource
import sys
from pathlib import Path

import pytest

from jaxpipe.baselines.compare.measured import peak_bytes


@pytest.mark.parametrize(("platform", "factor"), [("darwin", 1), ("freebsd14", 1024)])
def test_the_unit_is_that_of_the_system(
    platform: str, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)  # no /proc
    monkeypatch.setattr(sys, "platform", platform)
    assert peak_bytes() == factor * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
