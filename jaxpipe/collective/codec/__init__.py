"""Codecs: lossy compression of floating-point messages for slow links, and what they cost."""
