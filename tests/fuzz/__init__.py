"""Seeded fuzzing of everything that is read from files; ``python -m tests.fuzz --help``."""
