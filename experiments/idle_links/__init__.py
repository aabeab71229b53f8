"""What our own connections pay after a silence, and which remedies are worth having."""
