"""One run: the steps from a recipe to its report."""
