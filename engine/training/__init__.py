"""Recipes of fine-tuning: what they train, and how a gradient becomes a step."""

from .setting import Setting, strategy_of

__all__ = ["Setting", "strategy_of"]
