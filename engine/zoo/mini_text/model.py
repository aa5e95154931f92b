"""The small BERT of mini_text: its configuration, and how it is run on sentences of many tasks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..texts.bert import Bert
from ..texts.words import PAD, SEP, SPECIAL, Words
from .sentences import Split

PREFIX = "bert."
LENGTH = 26  # tokens a text
SCALE = 20.0  # what cosines are multiplied by
BATCH = 250
State = dict[str, Tensor]


def configuration(words: int) -> dict[str, Any]:
    """Return the model's config as transformers writes it."""
    return {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "vocab_size": words,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 192,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": LENGTH,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": PAD,
        "sep_token_id": SEP,
    }


def new_model(words: int, seed: int) -> Bert:
    """Return a randomly initialised model."""
    torch.manual_seed(seed)
    return Bert(configuration(words))


def prepare(split: Split, words: Words) -> Tensor:
    """Turn sentences into ids and segments (n, 2, LENGTH)."""
    return torch.from_numpy(words.encode(split.texts, LENGTH).ids)


def trimmed(samples: Tensor) -> Tensor:
    """Leave out columns in which no text of a batch has a token."""
    return samples[..., : int((samples[:, 0] != PAD).sum(1).max())]


@torch.inference_mode()
def features_of(model: Bert, samples: Tensor) -> Tensor:
    """Return features (n, dim) of prepared sentences."""
    model.eval()
    return torch.cat([model(trimmed(part)) for part in samples.split(BATCH)])


def accuracy(features: Tensor, head: Tensor, labels: Tensor) -> float:
    """Return the percentage of features (n, dim) whose most similar head row (classes, dim) is the label's (n,)."""
    predictions = (functional.normalize(features, dim=-1) @ head.T).argmax(dim=1)
    return 100.0 * predictions.eq(labels).float().mean().item()


def filled(model: Bert, state: Mapping[str, Tensor]) -> Bert:
    """Return a copy of a model with the `bert.*` tensors of a checkpoint."""
    other = copy.deepcopy(model)
    other.load_state_dict({name.removeprefix(PREFIX): tensor.float() for name, tensor in state.items()})
    return other.eval()


def state_of(model: Bert) -> State:
    """Return the model's tensors under their checkpoint names `bert.*`."""
    return {PREFIX + name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


__all__ = [
    "LENGTH",
    "PREFIX",
    "SCALE",
    "SPECIAL",
    "State",
    "accuracy",
    "configuration",
    "features_of",
    "filled",
    "new_model",
    "prepare",
    "state_of",
    "trimmed",
]
