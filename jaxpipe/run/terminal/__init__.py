"""What a run shows: the console, one progress line, the steps and the results.

::

    ranks ── how far ──► rank_progress ──► progress    one line, above which all else appears
    rank 0 ── metrics ─► report        ──► console
"""
