"""DT-FM's published iteration times and their simulation, and jaxpipe's own plans."""
