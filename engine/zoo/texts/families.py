"""Families of published text models: what they call their tensors, their sizes and their classifiers. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...layouts import BERT, DISTILBERT, GPT2, ROBERTA, T5, Layout

ANSWERS = 32  # answers that a model can be asked to rank, at most: the width of its features


@dataclass(frozen=True)
class Family:
    """One kind of text model, as ``model_type`` of its config names it."""

    kind: str
    title: str
    layout: Layout
    published: str  # what names in published checkpoints begin with, '' where a prefix is missing or there is none
    anchor: str  # a tensor that every checkpoint has, without prefix
    sizes: Mapping[str, str]  # name of a size → its name in the config
    # Last layer of a classifier, and the dense layer before it with its activation; '' where there is none.
    classifier: str = ""
    dense: str = ""
    activation: Literal["tanh", "relu", ""] = ""
    left: tuple[str, ...] = ()  # beginnings of names that are no part of the encoder, such as heads of pretraining
    renamed: Mapping[str, str] = field(default_factory=dict)  # ends of names in old checkpoints
    scored: bool = True  # whether texts can be classified with it here
    answers: bool = False  # whether classes are answers to be ranked
    offset: int = 0  # positions that no text uses
    activations: tuple[str, tuple[str, ...]] = ("hidden_act", ("gelu",))  # place in the config, and what is computed
    usual: Mapping[str, Any] = field(default_factory=dict)  # what transformers fills in where a config says nothing
    copies: tuple[str, ...] = ()  # tensors that repeat the table of embeddings: always,
    output: str = ""  # and the one that may
    made: str = ""  # class of transformers that holds the encoder,
    made_with_head: str = ""  # and the one with a classifier
    pooler: bool = False  # whether features pass a dense layer of the encoder's own
    pad: str = "pad_token"  # the special word that pads where none is named for it
    segments: bool = False  # whether the second part of a text is told from the first

    def size(self, config: Mapping[str, Any], name: str) -> int:
        """Return one of ``sizes`` of a checked config."""
        return config[self.sizes[name]]


_OLD = {".gamma": ".weight", ".beta": ".bias"}
_BERT_SIZES = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
}
_BERT_USUAL = {"hidden_act": "gelu", "layer_norm_eps": 1e-12}
FAMILIES: dict[str, Family] = {
    family.kind: family
    for family in (
        Family(
            kind="bert",
            title="BERT",
            layout=BERT,
            published="bert.",
            anchor="embeddings.word_embeddings.weight",
            sizes=_BERT_SIZES,
            classifier="classifier",
            left=("cls.",),
            renamed=_OLD,
            usual={**_BERT_USUAL, "pad_token_id": 0},
            made="BertModel",
            made_with_head="BertForSequenceClassification",
            pooler=True,
            segments=True,
        ),
        Family(
            kind="roberta",
            title="RoBERTa",
            layout=ROBERTA,
            published="roberta.",
            anchor="embeddings.word_embeddings.weight",
            sizes=_BERT_SIZES,
            classifier="classifier.out_proj",
            dense="classifier.dense",
            activation="tanh",
            left=("lm_head.", "roberta.pooler.", "pooler."),
            renamed=_OLD,
            offset=2,
            usual={**_BERT_USUAL, "pad_token_id": 1},
            made="RobertaModel",
            made_with_head="RobertaForSequenceClassification",
        ),
        Family(
            kind="distilbert",
            title="DistilBERT",
            layout=DISTILBERT,
            published="distilbert.",
            anchor="embeddings.word_embeddings.weight",
            sizes={
                "vocabulary": "vocab_size",
                "width": "dim",
                "layers": "n_layers",
                "heads": "n_heads",
                "inner": "hidden_dim",
                "positions": "max_position_embeddings",
            },
            classifier="classifier",
            dense="pre_classifier",
            activation="relu",
            left=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
            activations=("activation", ("gelu",)),
            usual={"activation": "gelu", "pad_token_id": 0, "sinusoidal_pos_embds": False},
            made="DistilBertModel",
            made_with_head="DistilBertForSequenceClassification",
        ),
        Family(
            kind="t5",
            title="T5",
            layout=T5,
            published="",
            anchor="shared.weight",
            sizes={
                "vocabulary": "vocab_size",
                "width": "d_model",
                "layers": "num_layers",
                "heads": "num_heads",
                "inner": "d_ff",
                "head": "d_kv",
            },
            answers=True,
            activations=("feed_forward_proj", ("relu", "gated-gelu")),
            usual={
                "feed_forward_proj": "relu",
                "layer_norm_epsilon": 1e-6,
                "pad_token_id": 0,
                "eos_token_id": 1,
                "decoder_start_token_id": 0,
                "tie_word_embeddings": True,
            },
            copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
            output="lm_head.weight",
            made="T5ForConditionalGeneration",
        ),
        Family(
            kind="gpt2",
            title="GPT-2",
            layout=GPT2,
            published="transformer.",
            anchor="wte.weight",
            sizes={
                "vocabulary": "vocab_size",
                "width": "n_embd",
                "layers": "n_layer",
                "heads": "n_head",
                "positions": "n_positions",
            },
            left=("score.", "lm_head."),  # its output repeats the table of embeddings
            scored=False,
            activations=("activation_function", ("gelu_new", "gelu")),
            usual={"activation_function": "gelu_new"},
            made="GPT2LMHeadModel",
            pad="eos_token",
        ),
    )
}


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of a checked config."""
    return FAMILIES[config["model_type"]]
