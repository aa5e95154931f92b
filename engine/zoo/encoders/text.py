"""Zero-shot heads from a zoo's own text encoder and templates, for zoos that bring no heads.

A head's row is the mean over the templates of unit-norm text embeddings of a class, of unit norm again. A class that a
set of prompts calls by several names is the mean over all of them.
Source: Radford et al., ICML 2021, arXiv:2103.00020, §3.1.4 (prompt ensembling). Departure: none; how several names of a
class are combined is not published.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...catalog.prompts import USUAL
from ...errors import CheckpointError, ZooError
from ...manifest import Manifest, Task, resolve_inside
from ...types import Progress, Weights
from ...weights import open_weights
from ..modalities import modality_of
from .architecture import VOCABULARY
from .backbone import architecture

MAX_VOCABULARY_BYTES = 20_000_000
CLIP_VOCABULARY = 49_408
BATCH = 128
PREFIXES = ("", "text.")
Tokenize = Callable[[Sequence[str]], Tensor]


def text_problem(folder: Path, manifest: Manifest, base: Weights | None = None) -> str:
    """Return why no heads can be built from the zoo's text encoder; '' where they can. Reads headers only."""
    if not modality_of(manifest).worded:
        return "no classifiers came along with its experts"
    try:
        config = _text_config(architecture(folder, manifest))
        base = base or open_weights(resolve_inside(folder, manifest.backbone.weights))
        names = set(base.names)
        if not any(f"{prefix}token_embedding.weight" in names for prefix in PREFIXES):
            return f"the base's file {manifest.backbone.weights} holds no text encoder"
        _vocabulary(folder, manifest, config)
    except (ZooError, CheckpointError) as error:
        return str(error)
    return ""


def unreadable_prompts(folder: Path, manifest: Manifest) -> list[str]:
    """Return why heads of tasks cannot be built: their prompts are beyond the vocabulary. CLIP's own reads any text."""
    path, found = vocabulary_file(folder, manifest), []
    words = Words(path) if path else None
    for task in manifest.tasks if words else ():
        try:
            _tokens(words, task)
        except ZooError as error:
            found.append(str(error))
    return found


def vocabulary_file(folder: Path, manifest: Manifest) -> Path | None:
    """Return the words that the text encoder reads, where it is no encoder of CLIP's own vocabulary."""
    path = (folder / manifest.backbone.architecture).parent / VOCABULARY
    return path if manifest.backbone.architecture.endswith(".json") and path.is_file() else None


def templates_of(task: Task) -> tuple[str, ...]:
    """Return a task's templates, or CLIP's usual one."""
    return task.templates or (USUAL,)


def prompts(task: Task) -> list[list[str]]:
    """Return the prompts of every class, in head order: each template with each of the class's names."""
    return [
        [template.replace("{}", word) for word in task.words.get(name, (name,)) for template in templates_of(task)]
        for name in task.classes
    ]


def build_heads(
    folder: Path,
    manifest: Manifest,
    tasks: Sequence[str],
    progress: Progress,
    cached: Callable[[Task, Callable[[], Tensor]], Tensor] = lambda task, compute: compute(),
    *,
    base: Weights | None = None,
) -> dict[str, Tensor]:
    """Build the heads of some tasks.

    Args:
        folder: the zoo's folder.
        manifest: its manifest.
        tasks: names of tasks.
        progress: told after every task.
        cached: may remember a task's head.
        base: the base's tensors, where they do not lie in the folder yet.

    Returns:
        Heads (classes, dim) by task, rows of unit norm.

    Raises:
        ZooError: the base holds no text encoder, or a prompt is beyond its vocabulary.
    """
    encoder: tuple[nn.Module, Tokenize] | None = None
    heads = {}

    def compute(task: Task) -> Tensor:
        nonlocal encoder
        encoder = encoder or _encoder(folder, manifest, base)
        return _head(*encoder, task)

    for number, name in enumerate(tasks):
        task = manifest.task_table[name]
        progress(number / len(tasks), f"head of {task.label}")
        heads[name] = cached(task, lambda task=task: compute(task))
    return heads


@torch.inference_mode()
def _head(encoder: nn.Module, tokenize: Tokenize, task: Task) -> Tensor:
    by_class, tokens = prompts(task), _tokens(tokenize, task)
    of_class = torch.repeat_interleave(torch.tensor([len(texts) for texts in by_class]))
    sums: Tensor | float = 0.0  # over a class's prompts; its mean has the same direction
    for places, part in zip(of_class.split(BATCH), tokens.split(BATCH), strict=True):
        found = functional.normalize(encoder(part), dim=-1)
        sums = sums + torch.zeros(len(by_class), found.shape[1]).index_add_(0, places, found)
    return functional.normalize(sums, dim=1)


def _tokens(tokenize: Tokenize, task: Task) -> Tensor:
    try:
        return tokenize([text for texts in prompts(task) for text in texts])
    except ZooError as error:
        raise ZooError(f"The head of '{task.name}' cannot be built: {error}") from error


def _text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    found = config.get("text_cfg")
    if not isinstance(found, Mapping):
        raise ZooError("the backbone's architecture describes no text encoder (text_cfg)")
    if found.get("hf_model_name") or found.get("hf_tokenizer_name"):
        raise ZooError("the backbone's text encoder needs a tokenizer from the Hub, which is not fetched")
    return dict(found)


def _encoder(folder: Path, manifest: Manifest, base: Weights | None = None) -> tuple[nn.Module, Tokenize]:
    """Return the text encoder with the base's tensors, and what turns texts into its tokens."""
    from open_clip.model import _build_text_tower

    if problem := text_problem(folder, manifest, base):
        raise ZooError(
            f"Heads cannot be built: {problem.rstrip('.')}. Give a base with its text encoder (all of CLIP), or "
            "`heads:` in zoo.yaml."
        )
    config = architecture(folder, manifest)
    text = _text_config(config)
    try:
        encoder = _build_text_tower(config["embed_dim"], text, bool(config.get("quick_gelu", False))).eval()
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ZooError(f"The backbone's text encoder cannot be built by open_clip: {error}.") from error
    base = base or open_weights(resolve_inside(folder, manifest.backbone.weights))
    names = set(base.names)
    prefix = next(prefix for prefix in PREFIXES if f"{prefix}token_embedding.weight" in names)
    with torch.no_grad():
        for name, parameter in encoder.state_dict(keep_vars=True).items():
            stored = prefix + name
            if stored not in names:
                raise ZooError(f"The base's text encoder holds no {stored}, which the architecture has.")
            if base.shape(stored) != tuple(parameter.shape):
                raise ZooError(
                    f"{stored} has shape {base.shape(stored)}; the architecture has {tuple(parameter.shape)}. "
                    "Choose weights of this architecture."
                )
            parameter.copy_(base.tensor(stored))
    return encoder.requires_grad_(False), _vocabulary(folder, manifest, text)


def _vocabulary(folder: Path, manifest: Manifest, text: Mapping[str, Any]) -> Tokenize:
    path = vocabulary_file(folder, manifest)
    if path is not None:
        return Words(path)
    if text.get("vocab_size", CLIP_VOCABULARY) != CLIP_VOCABULARY:
        raise ZooError(
            f"the text encoder reads {text['vocab_size']} tokens, not CLIP's {CLIP_VOCABULARY}; put its words beside "
            f"the config as {VOCABULARY}"
        )
    from open_clip.tokenizer import SimpleTokenizer

    length = int(text.get("context_length", 77))
    tokenizer = SimpleTokenizer(context_length=length, **(text.get("tokenizer_kwargs") or {}))
    return lambda texts: tokenizer(list(texts), context_length=length)


class Words:
    """Lower-case words as tokens, with a start and an end token, as in the bundled zoo."""

    def __init__(self, path: Path) -> None:
        try:
            if path.stat().st_size > MAX_VOCABULARY_BYTES:
                raise ValueError("it is too large")
            document = json.loads(path.read_text("utf-8"))
            self._words = {str(word): int(number) for word, number in document["words"].items()}
            self._length = int(document["context_length"])
            special = document["special"]
            self._pad, self._start, self._end = (int(special[name]) for name in ("pad", "start", "end"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise ZooError(f"{path.name} cannot be read as a vocabulary ({error})") from error

    def unknown(self, texts: Sequence[str]) -> list[str]:
        """Return words of some texts that the encoder never learned, in alphabetical order."""
        return sorted({word for text in texts for word in text.lower().split() if word not in self._words})

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return tokens (n, context length).

        Raises:
            ZooError: a word that the encoder never learned, or too many words.
        """
        tokens = torch.full((len(texts), self._length), self._pad, dtype=torch.long)
        for row, text in enumerate(texts):
            words = text.lower().split()
            unknown = [word for word in words if word not in self._words]
            if unknown:
                raise ZooError(f"the text encoder knows no word '{unknown[0]}' (of '{text}').")
            if len(words) > self._length - 2:
                raise ZooError(f"'{text}' has {len(words)} words; the text encoder reads {self._length - 2}.")
            ids = [self._start, *(self._words[word] for word in words), self._end]
            tokens[row, : len(ids)] = torch.tensor(ids)
        return tokens
