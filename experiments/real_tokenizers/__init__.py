"""Tokenizers that people use: prepared documents and conversations beside those of transformers."""
