"""What the runtime reaches, beside what others reach on the same machine."""
