"""Zero-shot heads from a text encoder that reads whole words (``vocabulary.json`` beside the base, as in mini8)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import ZooError
from ..weights import open_weights

VOCABULARY = "vocabulary.json"
MAX_VOCABULARY_BYTES = 10_000_000


class UnknownWords(ZooError):
    """Class names that the text encoder cannot read."""


class WordVocabulary:
    """Token numbers of lower-case words."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Take what vocabulary.json holds.

        Raises:
            ZooError: a part is missing.
        """
        try:
            self.words = {str(word): int(number) for word, number in document["words"].items()}
            self.start, self.end = (int(document["special"][name]) for name in ("start", "end"))
            self.context = int(document["context_length"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ZooError(f"{VOCABULARY} lacks words, special or context_length: {error}.") from error

    @classmethod
    def read(cls, folder: Path) -> WordVocabulary:
        """Read the vocabulary of a zoo's folder.

        Raises:
            ZooError: there is none, or it cannot be used.
        """
        path = folder / VOCABULARY
        try:
            if path.stat().st_size > MAX_VOCABULARY_BYTES:
                raise ZooError(f"{path} is too large for a vocabulary.")
            document = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ZooError(f"The vocabulary {path} cannot be read: {error}.") from error
        return cls(document if isinstance(document, dict) else {})

    def unknown(self, texts: Sequence[str]) -> list[str]:
        """Words of the texts that have no number, in alphabetical order."""
        return sorted({word for text in texts for word in text.lower().split() if word not in self.words})

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Token numbers (texts, context); unknown words must have been refused before.

        Raises:
            ZooError: a text is too long.
        """
        tokens = torch.zeros(len(texts), self.context, dtype=torch.long)
        for row, text in enumerate(texts):
            words = text.lower().split()
            if len(words) > self.context - 2:
                raise ZooError(f"'{text}' has {len(words)} words; the text encoder reads {self.context - 2}.")
            ids = [self.start, *(self.words[word] for word in words), self.end]
            tokens[row, : len(ids)] = torch.tensor(ids)
        return tokens


def word_heads(
    folder: Path, weights: Path, config: Mapping[str, Any], tasks: Mapping[str, tuple[Sequence[str], Sequence[str]]]
) -> dict[str, Tensor]:
    """Heads from the base's own text encoder.

    Args:
        folder: of the zoo that has the vocabulary.
        weights: the base's file, text encoder included.
        config: its open_clip model config.
        tasks: task → class names and templates.

    Returns:
        Task → (classes, dim): the mean over templates of unit-norm text embeddings, of unit norm again.

    Raises:
        UnknownWords: naming the tasks and the words.
        ZooError: no vocabulary, or the file has no text encoder.
    """
    vocabulary = WordVocabulary.read(folder)
    prompts = {
        task: [[template.format(name) for name in classes] for template in templates]
        for task, (classes, templates) in tasks.items()
    }
    missing = {task: vocabulary.unknown([text for texts in lists for text in texts]) for task, lists in prompts.items()}
    if any(missing.values()):
        named = "; ".join(f"{task}: {', '.join(words)}" for task, words in missing.items() if words)
        raise UnknownWords(f"The base's text encoder has never seen these words: {named}.")
    model = _text_model(weights, config)
    return {task: _head(model, vocabulary, lists) for task, lists in prompts.items()}


@torch.no_grad()
def _head(model: Any, vocabulary: WordVocabulary, prompts: Sequence[Sequence[str]]) -> Tensor:
    per_template = [functional.normalize(model.encode_text(vocabulary.encode(texts)), dim=-1) for texts in prompts]
    return functional.normalize(torch.stack(per_template).mean(0), dim=-1)


def _text_model(weights: Path, config: Mapping[str, Any]) -> Any:
    from open_clip.model import CLIP

    parts = ("embed_dim", "vision_cfg", "text_cfg", "quick_gelu")
    try:
        model = CLIP(**{name: config[name] for name in parts if name in config}).eval()
        file = open_weights(weights)
        model.load_state_dict({name: file.tensor(name).float() for name in file.names})
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ZooError(f"{weights.name} holds no text encoder of the zoo's architecture ({reason:.200}).") from error
    return model
