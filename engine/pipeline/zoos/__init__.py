"""Steps that make or change zoos: fetching, importing, training."""
