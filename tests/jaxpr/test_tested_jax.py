"""The versions of JAX that are tested: the range of the package, and of this environment."""

import logging
import re
import tomllib
from pathlib import Path

import jax
import pytest

from jaxpipe.jaxpr import TESTED, is_tested, warn_if_untested

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_range_is_that_of_the_package():
    (needed,) = (each for each in PROJECT["dependencies"] if re.match(r"jax\b", each))
    oldest, before = re.fullmatch(r"jax>=0\.(\d+),<0\.(\d+)", needed).groups()  # type: ignore[union-attr]
    assert f"jax 0.{oldest} to 0.{int(before) - 1}" == TESTED
    assert is_tested(f"0.{oldest}.0")
    assert not is_tested(f"0.{int(oldest) - 1}.9")
    assert not is_tested(f"0.{before}.0")
    assert not is_tested("1.0.0")


def test_the_jax_of_this_environment_is_tested(caplog: pytest.LogCaptureFixture):
    warn_if_untested()
    assert caplog.messages == []


def test_an_untested_jax_is_a_warning_that_names_the_range(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jax, "__version__", "0.13.0rc1")
    warn_if_untested()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert TESTED in record.message
    assert "jax 0.13.0rc1" in record.message
