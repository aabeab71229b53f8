"""What becomes of runs that break."""
