"""What codecs on slow links do to the loss, and how many bytes they save."""
