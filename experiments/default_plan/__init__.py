"""The plan that is searched by default, compared with 1F1B over an even partition."""
