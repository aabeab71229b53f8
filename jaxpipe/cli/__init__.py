"""The command line: a table of names to functions, each of which can be called from Python."""
