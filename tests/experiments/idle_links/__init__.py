"""Tests of the experiment on links that were idle."""
