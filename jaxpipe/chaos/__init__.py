"""Breaks runs on purpose, and counts how often they come out as they must."""

from jaxpipe.chaos.harness.trial import Family, Setup, Trial

__all__ = ["Family", "Setup", "Trial"]
