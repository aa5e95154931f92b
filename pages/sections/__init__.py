"""Sections of single pages."""
