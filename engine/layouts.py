"""Names of encoders' tensors: prefixes, numbered blocks and parts, declared once for every family of architectures.

Free of torch. Whoever scales by depth, groups by block or orders layers asks here, so that a further family is an
entry of its own and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# Containers of numbered blocks: open_clip's, timm's and Swin's, BERT's, T5's, GPT-2's.
CONTAINERS = ("resblocks", "blocks", "layers", "layer", "block", "h")
_BLOCK = re.compile(rf"(?:^|\.)(?:{'|'.join(CONTAINERS)})\.(\d+)\.(.+)$")
WRAPPED = ("trunk.",)  # what stands between a prefix and a tower's own names


class Matrix(NamedTuple):
    """Weight matrix of a block: its name there, and which third of its rows where three lie in one tensor."""

    name: str
    third: int | None = None


@dataclass(frozen=True)
class Layout:
    """Names that one family gives its tensors."""

    family: str
    prefix: str  # of the encoder's tensors in a checkpoint
    stem: tuple[str, ...]  # beginnings of names before the blocks, without the prefix
    sampled: tuple[str, ...]  # small tensors of every part: enough to tell what a fine-tuning moved
    projection: str = ""  # the tensor that makes features of the last block's output, which some fine-tunings keep
    beside: tuple[str, ...] = ()  # beginnings of names that a checkpoint may hold beside its encoder's
    perceptron: tuple[str, str] = ("", "")  # ends of the names of a block's two dense layers
    # Axes of the residual stream outside the blocks: name and axis.
    stream: tuple[tuple[str, int], ...] = ()
    derived: tuple[str, ...] = ()  # ends of names of buffers that follow from the architecture
    blocks: str = ""  # beginning of blocks' names, without the prefix, where blocks can be followed one by one
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # beginnings of names in a block, by kind
    scales: tuple[str, ...] = ()  # of a block: what its branches are multiplied by, in architectures that do so
    read_out: tuple[str, ...] = ()  # beginnings of names behind the blocks, where there are any
    # Of a block: of attention q, k, v and out; of the perceptron fc, gate (where there is one) and proj.
    matrices: Mapping[str, tuple[Matrix, ...]] = field(default_factory=dict)

    @property
    def streamed(self) -> bool:
        """Tell whether features are the residual stream itself, and lie in its order."""
        return bool(self.stream) and not self.read_out

    def matrix(self, part: str) -> Matrix:
        """Return the matrix of a part, the first where blocks have several."""
        return self.matrices[part][0]


OPEN_CLIP = Layout(
    family="open_clip",
    prefix="visual.",
    stem=("class_embedding", "positional_embedding", "conv1", "patch_embed", "cls_token", "pos_embed", "ln_pre"),
    sampled=(
        "visual.proj",
        "visual.class_embedding",
        "visual.positional_embedding",
        "visual.conv1.weight",
        "visual.ln_pre.weight",
        "visual.ln_post.weight",
        "visual.transformer.resblocks.0.attn.out_proj.weight",
        "visual.transformer.resblocks.0.mlp.c_fc.bias",
    ),
    projection="visual.proj",
    perceptron=("c_fc", "c_proj"),
    stream=(
        ("conv1.weight", 0),
        ("class_embedding", 0),
        ("positional_embedding", 1),
        ("ln_pre.weight", 0),
        ("ln_pre.bias", 0),
        ("ln_post.weight", 0),
        ("ln_post.bias", 0),
        ("proj", 0),
    ),
    blocks="transformer.resblocks.",
    parts={"attention": ("attn.",), "mlp": ("mlp.",), "norm": ("ln_1.", "ln_2.")},
    scales=("ls_1.gamma", "ls_2.gamma"),
    read_out=("ln_post.", "proj"),
    matrices={
        "q": (Matrix("attn.in_proj_weight", 0),),
        "k": (Matrix("attn.in_proj_weight", 1),),
        "v": (Matrix("attn.in_proj_weight", 2),),
        "out": (Matrix("attn.out_proj.weight"),),
        "fc": (Matrix("mlp.c_fc.weight"),),
        "proj": (Matrix("mlp.c_proj.weight"),),
    },
)
_BERT_PARTS = {
    "attention": ("attention.self.", "attention.output.dense."),
    "mlp": ("intermediate.", "output.dense."),
    "norm": ("attention.output.LayerNorm.", "output.LayerNorm."),
}
_BERT_MATRICES = {
    "q": (Matrix("attention.self.query.weight"),),
    "k": (Matrix("attention.self.key.weight"),),
    "v": (Matrix("attention.self.value.weight"),),
    "out": (Matrix("attention.output.dense.weight"),),
    "fc": (Matrix("intermediate.dense.weight"),),
    "proj": (Matrix("output.dense.weight"),),
}
_BERT_EMBEDDINGS = (
    ("embeddings.word_embeddings.weight", 1),
    ("embeddings.position_embeddings.weight", 1),
    ("embeddings.token_type_embeddings.weight", 1),
    ("embeddings.LayerNorm.weight", 0),
    ("embeddings.LayerNorm.bias", 0),
)
BERT = Layout(
    family="bert",
    prefix="bert.",
    stem=("embeddings",),
    sampled=(
        "bert.pooler.dense.bias",
        "bert.embeddings.token_type_embeddings.weight",
        "bert.embeddings.LayerNorm.weight",
        "bert.encoder.layer.0.attention.output.dense.bias",
        "bert.encoder.layer.0.intermediate.dense.bias",
    ),
    projection="bert.pooler.dense.weight",
    perceptron=("intermediate.dense", "output.dense"),
    stream=(*_BERT_EMBEDDINGS, ("pooler.dense.weight", 1)),
    beside=("classifier.", "cls."),
    derived=(".position_ids",),
    blocks="encoder.layer.",
    parts=_BERT_PARTS,
    read_out=("pooler.",),
    matrices=_BERT_MATRICES,
)
ROBERTA = Layout(
    family="roberta",
    prefix="roberta.",
    stem=("embeddings",),
    sampled=(
        "roberta.embeddings.LayerNorm.weight",
        "roberta.encoder.layer.0.attention.output.dense.bias",
        "roberta.encoder.layer.0.intermediate.dense.bias",
    ),
    perceptron=("intermediate.dense", "output.dense"),
    stream=_BERT_EMBEDDINGS,
    beside=("classifier.", "lm_head."),
    derived=(".position_ids",),
    blocks="encoder.layer.",
    parts=_BERT_PARTS,
    matrices=_BERT_MATRICES,
)
DISTILBERT = Layout(
    family="distilbert",
    prefix="distilbert.",
    stem=("embeddings",),
    sampled=(
        "distilbert.embeddings.LayerNorm.weight",
        "distilbert.transformer.layer.0.attention.out_lin.bias",
        "distilbert.transformer.layer.0.ffn.lin1.bias",
    ),
    perceptron=("ffn.lin1", "ffn.lin2"),
    stream=tuple(axis for axis in _BERT_EMBEDDINGS if "token_type" not in axis[0]),
    beside=("classifier.", "pre_classifier.", "vocab_"),
    derived=(".position_ids",),
    blocks="transformer.layer.",
    parts={"attention": ("attention.",), "mlp": ("ffn.",), "norm": ("sa_layer_norm.", "output_layer_norm.")},
    matrices={
        "q": (Matrix("attention.q_lin.weight"),),
        "k": (Matrix("attention.k_lin.weight"),),
        "v": (Matrix("attention.v_lin.weight"),),
        "out": (Matrix("attention.out_lin.weight"),),
        "fc": (Matrix("ffn.lin1.weight"),),
        "proj": (Matrix("ffn.lin2.weight"),),
    },
)


def _of_t5(name: str, *places: str) -> tuple[Matrix, ...]:
    return tuple(Matrix(f"layer.{place}.{name}.weight") for place in places)


_T5_ATTENTION = ("0.SelfAttention", "1.EncDecAttention")
_T5_PERCEPTRON = ("1.DenseReluDense", "2.DenseReluDense")  # of the encoder, of the decoder
T5 = Layout(  # the prefix is ours: the published names have none in common
    family="t5",
    prefix="t5.",
    stem=("shared",),
    sampled=(
        "t5.encoder.final_layer_norm.weight",
        "t5.decoder.final_layer_norm.weight",
        "t5.encoder.block.0.layer.0.layer_norm.weight",
        "t5.decoder.block.0.layer.1.layer_norm.weight",
    ),
    matrices={
        "q": _of_t5("q", *_T5_ATTENTION),
        "k": _of_t5("k", *_T5_ATTENTION),
        "v": _of_t5("v", *_T5_ATTENTION),
        "out": _of_t5("o", *_T5_ATTENTION),
        "fc": (*_of_t5("wi", *_T5_PERCEPTRON), *_of_t5("wi_1", *_T5_PERCEPTRON)),
        "gate": _of_t5("wi_0", *_T5_PERCEPTRON),
        "proj": _of_t5("wo", *_T5_PERCEPTRON),
    },
)
GPT2 = Layout(  # the prefix is ours: the published one, `transformer.`, is also that of CLIP's text encoder
    family="gpt2",
    prefix="gpt2.",
    stem=("wte", "wpe"),
    sampled=("gpt2.ln_f.weight", "gpt2.h.0.attn.c_proj.bias", "gpt2.h.0.mlp.c_fc.bias"),
    perceptron=("mlp.c_fc", "mlp.c_proj"),
)
LAYOUTS = (OPEN_CLIP, BERT, ROBERTA, DISTILBERT, T5, GPT2)
PREFIXES = tuple(layout.prefix for layout in LAYOUTS)
STEMS = tuple(stem for layout in LAYOUTS for stem in layout.stem)

# Components by marks in a name within its block, the first that fits.
COMPONENTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("LayerNorm",), "Norm"),
    (("attn", "attention", "Attention"), "Attention"),
    (("mlp", "intermediate", "output.dense", "ffn", "DenseReluDense"), "MLP"),
    (("ln_", "norm"), "Norm"),
    (("embed", "conv1", "cls_token", "wte", "wpe", "shared"), "Embedding"),
    (("proj", "head", "pooler"), "Projection"),
)


class Place(NamedTuple):
    """A tensor's numbered block and its name within it."""

    block: int
    part: str


def place_of(name: str) -> Place | None:
    """Return the block that a tensor lies in, None where it lies in none."""
    found = _BLOCK.search(name)
    return Place(int(found[1]), found[2]) if found else None


def block_of(name: str) -> int | None:
    """Return the number of the block that a tensor lies in, None where it lies in none."""
    place = place_of(name)
    return place.block if place else None


def part_of(name: str) -> str:
    """Return a tensor's name within its block, the whole name where it lies in none."""
    place = place_of(name)
    return place.part if place else name


def bare(name: str) -> str:
    """Return a tensor's name without its encoder's prefix."""
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


def unwrapped(name: str) -> str:
    """Return a tensor's name without prefix and without what wraps the tower."""
    short = bare(name)
    return next((short.removeprefix(part) for part in WRAPPED if short.startswith(part)), short)


def component_of(part: str) -> str:
    """Return the kind of layer that a name speaks of: Attention, MLP, Norm, Embedding, Projection or Other."""
    return next((component for marks, component in COMPONENTS if any(mark in part for mark in marks)), "Other")
