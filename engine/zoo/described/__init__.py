"""Zoos described by their sources, fetched when somebody asks for them."""
