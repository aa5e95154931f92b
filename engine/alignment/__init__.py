"""Bringing networks that do not share a start into one basin: symmetries, matchings, and repairs of what is left."""
