"""One step of one rank: the interpreter of programs and everything that it drives."""
