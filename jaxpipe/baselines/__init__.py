"""Systems of the literature: their strategies, their search, their simulation, their comparison.

Nothing of the product imports this package but `jaxpipe.cli`.
"""
