"""Shares of training runs that compute on the same cores."""
