"""Texts: encoders of published families, rows of token ids, and shifts as another hand would give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import DataError
from ...layouts import BERT, Layout
from ...manifest import Manifest, Task, manifest_file, resolve_inside
from ...preparation import Tokenisation
from ..modality import FLOAT, TowerSize
from ..texts import config as bert_config
from ..texts.brought import TextTask, find_text_tasks, find_texts, set_aside
from ..texts.data import TextData, open_texts
from ..texts.families import FAMILIES, family_of
from ..texts.tables import READERS, TextTable
from ..texts.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from torch import Tensor, nn

TOKENIZER = (  # how a published model's words are read
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
)
LOOKED_AT = 8 * 2**20  # bytes of texts that are read before anything is made of them
COPIES = 6  # of a block's widest activation that are alive at once


class TextModality:
    """Token ids and segments, int64 (n, 2, length), through encoders of texts."""

    name, one, many = "text", "text", "texts"
    layout = BERT
    preparation = Tokenisation
    shown = "words"
    shifts: ClassVar[Mapping[str, tuple[str, ...]]] = {"usual": ("typos", "dropped", "swapped")}
    augmentations = ("none",)
    drawn: ClassVar[Mapping[str, str]] = {"usual": "Typos, missing and swapped words"}
    shifted_by = "one word in seven misspelt, left out, or swapped with the next where one follows"
    parts = "words"
    graded = True
    padded = True
    facts = ("architecture",)
    exporter = ".pipeline.export.texts:export_text"
    surveyor = ".zoo.importing.texts.survey:survey_texts"
    tokenizers = TOKENIZER
    examples = ("fancyzhx/ag_news", "/data/news.jsonl")
    suspects = "tokenizer, classifier and the order of classes"
    worded = False
    files = tuple(READERS)
    forms = (
        "A .jsonl, .csv, .tsv or .parquet with columns of text and label, one a task, or a folder with a file for each "
        "split; named like the task, it is recognised."
    )

    def reads(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a config is one that names its kind of model, as those of text encoders do."""
        return "model_type" in config

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a published config is of a known family, or has words and no image encoder."""
        kind = config.get("model_type")
        if not isinstance(kind, str):
            return False
        return kind in FAMILIES or ("vocab_size" in config and "vision_config" not in config)

    def answers(self, manifest: Manifest) -> bool:
        """Tell whether classes are answers that a model ranks."""
        return manifest.backbone.tokenisation.answers

    def assumed(self, manifest: Manifest) -> str:
        """Return nothing: a zoo of texts states how texts are read."""
        return ""

    def published_bytes(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Return the bytes of a text model, twice: of T5 with its decoder."""
        size = bert_config.writer_bytes(config) if family_of(config).answers else bert_config.encoder_size(config).bytes
        return size, size

    def import_changes(self, manifest: Manifest) -> Mapping[str, Any]:
        """Return the length of texts, and the classes by which experts' own heads are recognised."""
        prompts = {task.name: {"classes": task.classes, "grades": task.grades} for task in manifest.tasks}
        length = manifest.backbone.tokenisation.length
        return {"architecture": "", "preprocess": "", "length": length, "prompts": prompts}

    def architecture(self, folder: Path, manifest: Manifest) -> dict[str, Any]:
        """Return the model config of a zoo's backbone, which masks the token that the zoo's tokenizer pads with.

        Raises:
            ZooError: it cannot be read, or counts positions from another token than that.
        """
        place = manifest_file(folder).parent  # the folder may be a description, which is a file
        name, stated = manifest.backbone.architecture, manifest.backbone.tokenisation
        config = bert_config.read_config(resolve_inside(place, name))
        if stated is None or stated.special is None:
            return config
        return bert_config.with_tokens(config, stated.special, name)

    def preprocessing(self, folder: Path, manifest: Manifest) -> Tokenisation:
        """Return the zoo's tokenisation with the digest of its vocabulary.

        Raises:
            ZooError: the vocabulary cannot be read, or does not fit the encoder.
        """
        stated = manifest.backbone.tokenisation
        words = read_vocabulary(resolve_inside(folder, stated.vocabulary), stated)
        bert_config.check_words(self.architecture(folder, manifest), words, stated)
        return stated.model_copy(update={"digest": words.digest})

    def misread(self, own: Tokenisation, theirs: Tokenisation) -> str:
        """Compare vocabularies: the same id has to be the same word."""
        if (own.digest, own.special) == (theirs.digest, theirs.special):
            return ""
        return "its texts are read with another vocabulary, so the same token is another word"

    def extent_in_words(self, preparation: Tokenisation) -> str:
        """Return the length of texts in words."""
        return f"tensors that fit the architecture, texts of up to {preparation.length} tokens"

    def width(self, config: Mapping[str, Any]) -> int:
        """Return the dimensions of features."""
        return bert_config.width_of(config)

    def shape(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the dimensions of features and of tokens, and the blocks of an encoder (of T5's encoder alone)."""
        family = family_of(config)
        blocks, token = (family.size(config, name) for name in ("layers", "width"))
        return {"d": bert_config.width_of(config), "w": token, "blocks": blocks}

    def head_width(self, config: Mapping[str, Any]) -> int:
        """Return the channels in a head of attention."""
        family = family_of(config)
        return family.size(config, "width") // family.size(config, "heads")

    def layout_of(self, config: Mapping[str, Any]) -> Layout:
        """Return how an encoder's tensors are named."""
        return family_of(config).layout

    def size(self, config: Mapping[str, Any]) -> TowerSize:
        """Count parameters and work of an encoder on texts of the greatest length."""
        return bert_config.encoder_size(config)

    def outline(self, config: Mapping[str, Any]) -> nn.Module:
        """Return an encoder on the meta device."""
        import torch

        found = bert_config.checked(config, "of the weights")
        if found["model_type"] != BERT.family:
            from ..texts.published import outline

            return outline(found)
        from ..texts.bert import Bert

        with torch.device("meta"):
            return Bert(found)

    def prepared(self, samples: Any, preparation: Tokenisation) -> Tensor:
        """Return ids as a tensor."""
        import torch

        return torch.as_tensor(np.asarray(samples), dtype=torch.int64)

    def finished(self, prepared: Tensor, preparation: Tokenisation) -> Tensor:
        """Return ids as they are."""
        return prepared

    def features(self, encoder: nn.Module, finished: Tensor) -> Tensor:
        """Return the encoder's features."""
        return encoder(finished)

    def samples(self, prepared: Tensor) -> np.ndarray:
        """Return ids as an array."""
        return prepared.numpy()

    def shifted(self, prepared: Tensor, kind: str, task: str, seed: int, preparation: Tokenisation) -> Tensor:
        """Shift rows of ids."""
        from ..texts.shifts import shift

        shifted = shift(prepared, kind, task, seed, preparation.special)
        if preparation.answers:
            shifted[:, 1] = prepared[:, 1]
        return shifted

    def augmented(self, samples: Tensor, kind: str, chance: np.random.Generator) -> Tensor:
        """Return rows of ids as they are: a word less can be another answer."""
        return samples

    def occluded(self, prepared: Tensor, preparation: Tokenisation) -> tuple[np.ndarray, Tensor]:
        """Put the mask in place of each word of a text (2, length) in turn."""
        from ..texts.occlusion import occluded

        return occluded(prepared, preparation.special)

    def blank(self, config: Mapping[str, Any], count: int) -> tuple[np.ndarray, Tokenisation]:
        """Return rows of one token of the greatest length."""
        length = bert_config.longest(config) or bert_config.USUAL_LENGTH
        ids = np.zeros((count, 2, length), np.int64)
        ids[:, 0] = config["vocab_size"] - 1
        return ids, Tokenisation(length=length)

    def bytes_each(self, encoder: nn.Module, extent: int) -> int:
        """Estimate the bytes that one text takes in float32 at the widest place of the encoder."""
        layers = [
            tensor.shape[0] for name, tensor in encoder.named_parameters() if "layer" in name and tensor.ndim == 2
        ]
        return FLOAT * (COPIES * extent * max(layers, default=4096) + extent**2)

    def open_task(self, folder: Path, task: Task, preparation: Callable[[], Any] | None = None) -> TextData:
        """Open a task's texts."""
        return open_texts(folder, task, preparation)

    def find_brought(self, place: Path) -> tuple[list[Path], list[str]]:
        """Return what holds one task's texts each, and names of folders without texts."""
        return find_texts(place)

    def find_tasks(self, place: Path) -> tuple[list[TextTask], list[str]]:
        """Return the tasks of which a place holds texts, and names of folders without texts."""
        return find_text_tasks(place)

    def set_aside(self, task: TextTask, zoo: Path, *, share: float, seed: int, link: bool) -> str:
        """Bring texts with a share of them to test on; they are written anew, so nothing is linked."""
        return set_aside(task, zoo, share=share, seed=seed)

    def open_brought(self, path: Path, name: str) -> TextTable:
        """Read the texts that somebody brings for a task, where they are few and lie there as plain text.

        Raises:
            DataError: as of images; and of more, or of a packed form, which whoever serves pages does not unpack.
        """
        files = [path] if path.is_file() else [file for file in path.iterdir() if file.suffix in READERS]
        size = sum(file.stat().st_size for file in files)
        if size > LOOKED_AT or any(file.suffix == ".parquet" for file in files):
            raise DataError(f"{size / 2**20:.1f} MiB, whose texts are counted when the zoo is checked")
        return TextTable(path)
