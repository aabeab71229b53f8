"""The harness of fault injection: runs, injectors, trials and the scorecard."""
