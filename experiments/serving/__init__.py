"""A tuned model in other programs: their texts and scores beside those of jaxpipe."""
