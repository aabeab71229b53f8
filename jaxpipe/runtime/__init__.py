"""Do it: stages, the interpreter of programs, training, data and checkpoints."""
