"""The pipeline against the other ways: the same model, data, optimizer and ranks, one table.

Nothing is imported here: `jaxpipe.compare.system` is what `--help` needs, and light.
"""
