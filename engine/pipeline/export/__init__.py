"""Results in other forms: weights, cards, recipes of other tools, examples."""
