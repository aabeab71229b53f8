"""Tests of the comparison over emulated networks."""
