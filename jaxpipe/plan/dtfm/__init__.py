"""DT-FM's cost of a grouping, and the search for the grouping of smallest cost."""
