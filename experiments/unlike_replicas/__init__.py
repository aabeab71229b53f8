"""Equal and unequal replicas on cores of unlike speed, measured and predicted."""
