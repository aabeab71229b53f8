"""A small Llama trained here, tuned with adapters over two regions, and opened by transformers."""
