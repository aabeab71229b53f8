"""Tests of `jaxpipe.collective`."""
