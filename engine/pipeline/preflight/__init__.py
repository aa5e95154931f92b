"""Looks before a run: findings about a recipe, and the time and memory that it takes."""
