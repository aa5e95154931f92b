"""A zoo of texts that is made in a fraction of a second: random weights, made sentences, the real format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

from engine.zoo.texts.bert import Bert
from engine.zoo.texts.words import Words

NOUNS = ("circle", "square", "star")
OTHERS = ("the", "a", "red", "blue", "big", "small", "is", "was", "here", "there")
WORDS = Words.of((*NOUNS, *OTHERS))
EXPERTS = ("alpha", "beta", "gamma")
LENGTH = 12
CONFIG = {
    "model_type": "bert",
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": LENGTH,
    "type_vocab_size": 2,
}


def model(seed: int = 0) -> Bert:
    """A small encoder whose features of different texts differ."""
    torch.manual_seed(seed)
    made = Bert({**CONFIG, "layer_norm_eps": 1e-12})
    for parameter in made.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(10)
    return made.eval().requires_grad_(False)


def sentences(seed: int, count: int) -> tuple[list[str], np.ndarray]:
    """Sentences that name one of three things among other words."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % len(NOUNS)
    texts = []
    for label in labels:
        words = [NOUNS[label], *random.choice(OTHERS, 5)]
        texts.append(" ".join(random.permutation(words)))
    return texts, labels


def write_task(path: Path, seed: int, texts: int = 24, *, adapt: bool = True, train: int = 0) -> None:
    """Write one task as JSON lines; the second half of its texts has a second part."""
    lines = []
    splits = {"test": texts, "val": 12, "adapt": texts if adapt else 0, "train": train}
    for number, (split, count) in enumerate(splits.items()):
        for row, (text, label) in enumerate(zip(*sentences(10 * seed + number, count), strict=True)):
            labelled = {} if split == "adapt" else {"label": int(label)}
            second = "it is here" if row >= count // 2 else ""
            lines.append(json.dumps({"split": split, "text": text, "text_pair": second, **labelled}))
    path.write_text("\n".join(lines), encoding="utf-8")


def make_text_zoo(folder: Path, *, experts: tuple[str, ...] = EXPERTS, texts: int = 24, train: int = 0) -> Path:
    """Write a zoo of small random encoders and sentences; one extra task is out of domain."""
    (folder / "experts").mkdir(parents=True, exist_ok=True)
    (folder / "data").mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "vocabulary.json").write_text(json.dumps(WORDS.as_json()))
    generator = torch.Generator().manual_seed(0)
    base = {f"bert.{name}": tensor.clone() for name, tensor in model().state_dict().items()}
    save_file(base, folder / "base.safetensors")
    for name in experts:
        moved = {key: value + 0.02 * torch.randn(value.shape, generator=generator) for key, value in base.items()}
        save_file(moved, folder / "experts" / f"{name}.safetensors")
    tasks = [*experts, "outside"]
    heads = {name: torch.nn.functional.normalize(torch.randn(3, 16, generator=generator), dim=1) for name in tasks}
    save_file({**heads, "logit_scale": torch.tensor(2.0)}, folder / "heads.safetensors")
    for number, name in enumerate(tasks):
        write_task(folder / "data" / f"{name}.jsonl", number, texts, adapt=name != "outside", train=train)
    manifest = {
        "format": 1,
        "name": "tiny-text",
        "modality": "text",
        "backbone": {
            "architecture": "config.json",
            "weights": "base.safetensors",
            "tokenisation": {"vocabulary": "vocabulary.json", "length": LENGTH},
        },
        "experts": [{"name": n, "task": n, "weights": f"experts/{n}.safetensors"} for n in experts],
        "tasks": [
            {
                "name": n,
                "domain": "out" if n == "outside" else "in",
                "data": f"data/{n}.jsonl",
                "classes": list(NOUNS),
            }
            for n in tasks
        ],
        "heads": "heads.safetensors",
    }
    (folder / "zoo.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    return folder
