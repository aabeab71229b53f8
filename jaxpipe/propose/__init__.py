"""A plan for a cluster and a model: the search, the simulator and the models, put together.

Nothing is imported here: `jaxpipe.propose.request` is what `--help` needs, and light.
"""
