"""Islands that wait for nobody, beside islands that meet: goodput under kills, and loss."""
