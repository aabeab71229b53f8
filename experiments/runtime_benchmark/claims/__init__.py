"""The claims of this experiment, a file to each: what is measured, summarised and drawn."""
