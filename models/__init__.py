"""What: the models that jaxpipe trains, and what they cost."""
