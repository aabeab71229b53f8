"""The versions of JAX that are tested: the range of the package, and of this environment."""

import logging
import tomllib
from pathlib import Path

import jax
import pytest
from packaging.requirements import Requirement

from jaxpipe.jaxpr import TESTED, is_tested, warn_if_untested

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_range_is_that_of_the_package():
    (needed,) = (each for each in map(Requirement, PROJECT["dependencies"]) if each.name == "jax")
    bounds = {each.operator: each.version for each in needed.specifier}
    before = int(bounds["<"].removeprefix("0."))
    assert f"jax {bounds['>=']} to 0.{before - 1}" == TESTED
    versions = (
        "0.9.9",
        "0.10.0",
        "0.10.1",
        "0.10.2",
        "0.11.0",
        f"0.{before - 1}.9",
        f"0.{before}.0",
    )
    for version in (*versions, "1.0.0"):
        assert is_tested(version) == needed.specifier.contains(version), version


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
