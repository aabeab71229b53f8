"""In-job recovery: survivors of a lost rank shrink, replan and transfer the training state."""
