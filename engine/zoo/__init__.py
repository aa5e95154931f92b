"""Zoos: a base, its experts and their tasks, from a folder to encoders, heads and images."""
