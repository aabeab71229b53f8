"""What a stage computes in a training step, as pure functions, and their compilation."""
