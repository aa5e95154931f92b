"""Grammars: one file a task, each with its classes and a function that writes a sentence of one of them."""
