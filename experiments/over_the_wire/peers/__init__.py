"""Other systems that train the same GPT: programs for a Python with torch, without jaxpipe."""
