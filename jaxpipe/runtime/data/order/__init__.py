"""Which samples a step reads: determined by seed and step, and independent of the placement.

::

    (seed, step) ─► mixture ─► source_order: from which dataset ─► samples ─► batches: which rows
                                                                     └─► permutation
    packing: whole documents in a row
"""
