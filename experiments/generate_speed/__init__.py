"""Speed of `jaxpipe generate` next to `transformers`, on the same weights and cores."""
