"""DT-FM's published iteration times, simulated, and jaxpipe's own plans beside them."""
