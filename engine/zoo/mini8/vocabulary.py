"""The words that the small text encoder reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CONTEXT = 12


class Vocabulary:
    """Word-level tokens: 0 pads, words count from 1, and the end token is the largest (open_clip pools there)."""

    context = CONTEXT

    def __init__(self, texts: Sequence[str]) -> None:
        words = sorted({word for text in texts for word in text.lower().split()})
        self.words = {word: number for number, word in enumerate(words, start=1)}
        self.start, self.end = len(words) + 1, len(words) + 2
        self.size = len(words) + 3

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return token ids of shape (texts, CONTEXT); raises ValueError for a word that was never learned."""
        tokens = torch.zeros(len(texts), CONTEXT, dtype=torch.long)
        for row, text in enumerate(texts):
            words = text.lower().split()
            unknown = [word for word in words if word not in self.words]
            if unknown or len(words) > CONTEXT - 2:
                raise ValueError(f"'{text}' has unknown words {unknown} or more than {CONTEXT - 2} words.")
            ids = [self.start, *(self.words[word] for word in words), self.end]
            tokens[row, : len(ids)] = torch.tensor(ids)
        return tokens

    def as_json(self) -> dict[str, Any]:
        """Return the text of vocabulary.json."""
        special = {"pad": 0, "start": self.start, "end": self.end}
        return {"tokenizer": "lower-case words", "context_length": CONTEXT, "special": special, "words": self.words}
