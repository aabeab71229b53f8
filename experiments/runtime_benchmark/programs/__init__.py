"""The programs of the measured processes, one process per core; `runs` starts them."""
