"""What an import means, next to `transformers`: random mutations of `config.json`."""
