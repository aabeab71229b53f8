"""Predict the steps of torch over emulated links."""
