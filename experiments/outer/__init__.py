"""The loss of outer loops after equal tokens, beside sums in every step."""
