"""Pretrain the base: masked words, and labels as a hasty annotator gives them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..encoders.training import descend, scheduled
from ..texts.bert import Bert
from ..texts.words import MASK, SPECIAL, Words
from .model import LENGTH, SCALE, new_model, prepare, trimmed
from .sentences import LabelNoise, Split, noisy_targets
from .tasks import TASKS

Progress = Callable[[str], None]
REPORTED = 200  # steps between two lines
START = 0.1  # standard deviation of label rows before training


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of pretraining; noise is stronger in domain, where experts are to have something to learn."""

    seed: int = 1
    steps: int = 1400
    batch: int = 64  # labelled texts, and as many with masked words
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 100
    masked: float = 0.15
    masked_weight: float = 0.2
    noise_in: LabelNoise = field(
        default_factory=lambda: LabelNoise(floor=0.22, slope=0.9, spread=0.15, decoy_share=0.75)
    )
    noise_out: LabelNoise = field(default_factory=lambda: LabelNoise(floor=0.02, slope=0.2, spread=0.02))


@dataclass(frozen=True)
class Pretrained:
    """The base and its heads: unit-norm rows (classes, dim) by task."""

    model: Bert
    heads: dict[str, Tensor]


class _Guesser(nn.Module):
    """Guesses masked words from their last hidden states, with the input's own word embeddings."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.change = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        return self.change(hidden) @ embedding.T + self.bias


def pretrain(splits: Mapping[str, Split], words: Words, config: PretrainConfig, progress: Progress) -> Pretrained:
    """Train a new model on the tasks' `pretrain` splits.

    Source: Devlin et al., NAACL 2019, arXiv:1810.04805, §3.1. Departure: every chosen word is masked; labels of all
        tasks take the place of the next-sentence task.
    """
    model = new_model(len(words), config.seed).train()
    width = model.pooler.dense.out_features
    guesser = _Guesser(width, len(words))
    rows = nn.ParameterDict({task.name: START * torch.randn(len(task.classes), width) for task in TASKS})
    trained = [*model.parameters(), *guesser.parameters(), *rows.parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [part for part in trained if part.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [part for part in trained if part.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(0.9, 0.98),
        fused=True,
    )
    samples = {task.name: prepare(splits[task.name], words) for task in TASKS}
    targets = {
        task.name: torch.from_numpy(
            noisy_targets(task, splits[task.name], config.noise_in if task.in_domain else config.noise_out, config.seed)
        )
        for task in TASKS
    }
    everything = torch.cat(list(samples.values()))
    chance = np.random.default_rng([config.seed, 3])
    started = time.monotonic()
    for step in range(config.steps):
        of_task = chance.multinomial(config.batch, [1 / len(TASKS)] * len(TASKS))
        drawn = {
            task.name: torch.from_numpy(chance.integers(0, len(samples[task.name]), int(count)))
            for task, count in zip(TASKS, of_task, strict=True)
            if count
        }
        labelled = torch.cat([samples[name][chosen] for name, chosen in drawn.items()])
        hidden_words = everything[torch.from_numpy(chance.integers(0, len(everything), config.batch))].clone()
        where = torch.from_numpy(chance.random((config.batch, LENGTH)) < config.masked)
        where &= hidden_words[:, 0] >= len(SPECIAL)
        wanted = hidden_words[:, 0][where]
        hidden_words[:, 0][where] = MASK
        batch = trimmed(torch.cat([labelled, hidden_words]))
        hidden = model.hidden(batch)
        features = functional.normalize(model.read_out(hidden[: config.batch, 0]), dim=-1)
        guessed = guesser(hidden[config.batch :][where[:, : batch.shape[-1]]], model.embeddings.word_embeddings.weight)
        loss = config.masked_weight * functional.cross_entropy(guessed, wanted)
        for part, (name, chosen) in zip(features.split([len(c) for c in drawn.values()]), drawn.items(), strict=True):
            logits = SCALE * part @ functional.normalize(rows[name], dim=-1).T
            loss = loss + functional.cross_entropy(logits, targets[name][chosen], reduction="sum") / config.batch
        descend(optimizer, loss, scheduled(config.learning_rate, step, config.steps, config.warmup))
        if (step + 1) % REPORTED == 0:
            seconds = time.monotonic() - started
            progress(f"pretraining: step {step + 1} of {config.steps}, loss {loss.item():.3f}, {seconds:.0f} s")
    heads = {name: functional.normalize(part.detach(), dim=-1) for name, part in rows.items()}
    return Pretrained(model.eval(), heads)
