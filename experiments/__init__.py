"""One folder per published table or claim."""
