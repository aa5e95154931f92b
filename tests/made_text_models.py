"""Small text models made by transformers' own classes, saved as people have them: base, experts, tokenizers, texts."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

NOUNS = ("circle", "square", "star")
VOCABULARY = (
    "<pad>",
    "<s>",
    "</s>",
    "<mask>",
    "<unk>",
    *NOUNS,
    "the",
    "a",
    "red",
    "blue",
    "is",
    "was",
    "here",
    "yes",
    "no",
)
ROWS = 24  # of tables of embeddings: some are spare, as in published models
_SIZES = {
    "vocab_size": ROWS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 34,
}
_DISTIL = {"vocab_size": ROWS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 34}
T5_SIZES = {
    "vocab_size": ROWS,
    "d_model": 16,
    "num_layers": 2,
    "num_heads": 2,
    "d_ff": 24,
    "d_kv": 8,
    "eos_token_id": 2,
}
T5_SIZES |= {"decoder_start_token_id": 0}
_GPT = {"vocab_size": ROWS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
CLASSIFIERS = {
    "bert": (BertConfig, BertForPreTraining, BertForSequenceClassification, {**_SIZES, "pad_token_id": 0}),
    "roberta": (RobertaConfig, RobertaForMaskedLM, RobertaForSequenceClassification, {**_SIZES, "pad_token_id": 0}),
    "distilbert": (DistilBertConfig, DistilBertForMaskedLM, DistilBertForSequenceClassification, _DISTIL),
}


def tokenizer(words=VOCABULARY, *, lower=False, pairs=True):
    """A tokenizer of whole words in the published form."""
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if lower:
        from tokenizers import normalizers

        made.normalizer = normalizers.Lowercase()
    if pairs:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    else:
        made.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 2)]
        )
    named = {
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "mask_token": "<mask>",
        "unk_token": "<unk>",
    }
    named |= {"eos_token": "</s>"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs, **named)


def moved(model, seed, share=0.2):
    """The model with every tensor moved a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(share * torch.randn(parameter.shape, generator=generator))
    return model


def save(model, folder, words=VOCABULARY, **more):
    """Save a model with its tokenizer."""
    shard = more.pop("shard", None)
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    tokenizer(words, **more).save_pretrained(folder)
    return Path(folder)


def classifiers(kind, folder, experts=("nouns", "answers"), *, shard=None):
    """A base without head and experts with classifiers of their own; returns the base's folder and the experts'."""
    of_config, of_base, of_expert, sizes = CLASSIFIERS[kind]
    torch.manual_seed(0)
    base = moved(of_base(of_config(**sizes)), 0)
    saved = save(base, folder / "base")
    inner = base.base_model.state_dict()
    found = {}
    for number, name in enumerate(experts):
        labels = {0: NOUNS, 1: ("yes", "no")}[number % 2]
        named = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
        torch.manual_seed(number + 1)
        expert = of_expert(of_config(**sizes, num_labels=len(labels), **named))
        expert.base_model.load_state_dict(inner, strict=False)
        found[name] = save(moved(expert, number + 1), folder / name, shard=shard)
    return saved, found


def t5(folder, experts=("nouns", "answers"), *, tied=True):
    """A T5 and experts, which answer in words."""
    torch.manual_seed(0)
    config = T5Config(**T5_SIZES, feed_forward_proj="relu" if tied else "gated-gelu", tie_word_embeddings=tied)
    base = T5ForConditionalGeneration(config)
    if not tied:
        base.lm_head.weight = torch.nn.Parameter(torch.randn(ROWS, 16))
        base.config.tie_word_embeddings = False
    save(base, folder / "base", pairs=False)
    found = {}
    for number, name in enumerate(experts):
        found[name] = save(moved(base, number + 1, 0.05), folder / name, pairs=False)
    return folder / "base", found


def gpt2(folder, experts=("one", "two")):
    """A GPT-2 and fine-tuned ones."""
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(**_GPT))
    save(base, folder / "base", pairs=False)
    found = {}
    for number, name in enumerate(experts):
        found[name] = save(moved(base, number + 1, 0.05), folder / name, pairs=False)
    return folder / "base", found


def texts(path, classes, count=18, *, pair=False, seed=0, numbers=True, train=0):
    """Write texts with labels as JSON lines, splits named in them."""
    generator = torch.Generator().manual_seed(seed)
    lines = []
    for split, rows in (("test", count), ("val", 6), ("adapt", count), ("train", train)):
        for row in range(rows):
            label = row % len(classes)
            chosen = torch.randint(5, len(VOCABULARY), (6,), generator=generator).tolist()
            line = {"split": split, "sentence1" if pair else "text": " ".join(VOCABULARY[word] for word in chosen)}
            if pair:
                line["sentence2"] = " ".join(VOCABULARY[word] for word in chosen[:3])
            lines.append(json.dumps({**line, "label": label if numbers else classes[label]}))
    path.write_text("\n".join(lines), "utf-8")
    return path
