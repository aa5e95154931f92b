"""Comparing the engine with folders of reference numbers, entry by entry."""

from .run import Outcome, check_folder

__all__ = ["Outcome", "check_folder"]
