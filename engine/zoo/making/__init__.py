"""New zoos from files that people bring."""
