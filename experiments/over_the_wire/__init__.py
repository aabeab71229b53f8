"""Other systems and jaxpipe on the same emulated networks."""
