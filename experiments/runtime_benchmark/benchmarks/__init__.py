"""The claims of this experiment, one per file: what is measured, summarised and drawn."""
