"""Texts, records and pictures to a dataset: written once, before any run.

::

    source, document, arrow_rows ─► token_stream ─► held_out ─► prepare ─┐
    lines with labels, pictures ──────────────────────────────► labelled ┴─► arrays, then the record
"""
