"""What becomes of runs whose ranks fail."""
