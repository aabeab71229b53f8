"""Event-driven engine: ranks execute their programs over the links of `jaxpipe.network`."""
