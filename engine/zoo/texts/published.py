"""Text models of published families as encoders: samples (n, 2, length) → features, by transformers' own classes.

The names of their tensors are those of the published checkpoints. Nothing is downloaded, and nothing of a repository
is executed: a model is made of its config's numbers.
"""

# ruff: noqa: F722

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2Model,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from ...errors import ZooError
from .families import ANSWERS, FAMILIES
from .plain import plain_config

COPIES, OUTPUT = FAMILIES["t5"].copies, FAMILIES["t5"].output


class _Made:
    """A model without values gets memory; its buffers, which follow from the architecture, get theirs again.

    Departure: nothing is dropped in training either, so that a step depends on its batch alone.
    """

    def train(self, mode: bool = True) -> Any:
        """Stay in evaluation mode, which differs from training in dropout only."""
        return super().train(False)  # type: ignore[misc]

    def to_empty(self, *, device: Any, recurse: bool = True) -> Any:
        """Return the model on a device, its tensors without values."""
        made = super().to_empty(device=device, recurse=recurse)  # type: ignore[misc]
        for name, buffer in made.named_buffers():
            if name.endswith("position_ids"):
                buffer.copy_(torch.arange(buffer.shape[-1]).expand_as(buffer))
            else:
                buffer.zero_()
        return made


class _FirstToken(_Made):
    """A model whose feature is the last block's output at the first token."""

    @property
    def heads(self) -> int:
        """Return how many heads a block's attention has."""
        return self.config.num_attention_heads  # type: ignore[attr-defined]

    def there(self, samples: Int[Tensor, "n 2 length"]) -> Bool[Tensor, "n length"]:
        """Tell which tokens are there; the others pad."""
        return samples[:, 0] != self.config.pad_token_id  # type: ignore[attr-defined]

    def read_out(self, first: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        """Return the first token as it is."""
        return first


class Roberta(_FirstToken, RobertaModel):
    """RoBERTa's encoder: its feature is the last block's output at the first token, which its classifiers take.

    Source: Liu et al., 2019, arXiv:1907.11692.
    """

    layout = FAMILIES["roberta"].layout

    @property
    def stations(self) -> Sequence[nn.Module]:
        """Return the blocks in their order."""
        return list(self.encoder.layer)

    def embed(self, samples: Int[Tensor, "n 2 length"]) -> Float[Tensor, "n length width"]:
        """Return the tokens that enter the first block."""
        ids = samples[:, 0]
        return self.embeddings(input_ids=ids, token_type_ids=torch.zeros_like(ids))

    def forward(self, samples: Int[Tensor, "n 2 length"]) -> Float[Tensor, "n width"]:
        """Return features, not normalised."""
        ids, mask = samples[:, 0], self.there(samples).long()
        found = super().forward(input_ids=ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids))
        return self.read_out(found.last_hidden_state[:, 0])


class DistilBert(_FirstToken, DistilBertModel):
    """DistilBERT's encoder: its feature is the last block's output at the first token, which its classifiers take.

    Source: Sanh et al., 2019, arXiv:1910.01108.
    """

    layout = FAMILIES["distilbert"].layout

    @property
    def stations(self) -> Sequence[nn.Module]:
        """Return the blocks in their order."""
        return list(self.transformer.layer)

    def embed(self, samples: Int[Tensor, "n 2 length"]) -> Float[Tensor, "n length width"]:
        """Return the tokens that enter the first block."""
        return self.embeddings(samples[:, 0])

    def forward(self, samples: Int[Tensor, "n 2 length"]) -> Float[Tensor, "n width"]:
        """Return features, not normalised."""
        found = super().forward(input_ids=samples[:, 0], attention_mask=self.there(samples).long())
        return self.read_out(found.last_hidden_state[:, 0])


class T5Ranker(_Made, T5ForConditionalGeneration):
    """T5 that ranks answers: its features are the log-likelihoods of a task's answers, in the order of its classes.

    Source: Raffel et al., JMLR 2020, arXiv:1910.10683, §2.4; ranking by summed log-probability as in Sanh et al.,
        ICLR 2022, arXiv:2110.08207, §5.2, with the token that ends an answer counted.
    """

    def there(self, samples: Int[Tensor, "n 2 length"]) -> Bool[Tensor, "n length"]:
        """Tell which tokens of the texts are there; the others pad."""
        return samples[:, 0] != self.config.pad_token_id

    def state_dict(self, *args: Any, **named: Any) -> dict[str, Any]:
        """Return tensors by name, tied ones once."""
        found = super().state_dict(*args, **named)
        copies = (*COPIES, *((OUTPUT,) if self.config.tied else ()))
        return {name: tensor for name, tensor in found.items() if name not in copies}

    def to_empty(self, *, device: Any, recurse: bool = True) -> Any:
        """Return the model on a device, its tied tensors the same memory again."""
        made = super().to_empty(device=device, recurse=recurse)
        made.encoder.embed_tokens.weight = made.decoder.embed_tokens.weight = made.shared.weight
        if made.config.tied:
            made.lm_head.weight = made.shared.weight
        return made

    def forward(self, samples: Int[Tensor, "n 2 length"]) -> Float[Tensor, "n answers"]:
        """Return log-likelihoods (n, ANSWERS), 0 beyond a task's answers; a sample's second row holds the answers."""
        scores = samples.new_zeros((len(samples), ANSWERS), dtype=self.shared.weight.dtype)
        rows, which = samples[:, 1].unique(dim=0, return_inverse=True)
        for number, row in enumerate(rows):
            chosen = (which == number).nonzero()[:, 0]
            ids = samples[chosen, 0]
            mask = self.there(samples[chosen]).long()
            states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            for place, answer in enumerate(answers_in(row, self.config.eos_token_id, self.config.pad_token_id)):
                scores[chosen, place] = self._likelihood(states, mask, answer)
        return scores

    def written(self, samples: Int[Tensor, "n 2 length"], longest: int) -> Int[Tensor, "n written"]:
        """Return the ids of answers, the likeliest token after token, padded behind the one that ends an answer."""
        ids, end, pad = samples[:, 0], self.config.eos_token_id, self.config.pad_token_id
        mask = self.there(samples).long()
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        found = ids.new_full((len(ids), 1), self.config.decoder_start_token_id)
        done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for _ in range(longest):
            last = self._hidden(states, mask, found)[:, -1]
            chosen = self.lm_head(last).argmax(dim=-1).masked_fill(done, pad)
            found, done = torch.cat([found, chosen[:, None]], dim=1), done | (chosen == end)
            if done.all():
                break
        return found[:, 1:]

    def _hidden(self, states: Tensor, mask: Tensor, given: Tensor) -> Float[Tensor, "n m width"]:
        """Return the decoder's output at each given token, as the table that writes words takes it."""
        found = self.decoder(input_ids=given, encoder_hidden_states=states, encoder_attention_mask=mask)
        hidden = found.last_hidden_state
        return hidden * self.model_dim**-0.5 if self.config.scale_decoder_outputs else hidden

    def _likelihood(self, states: Tensor, mask: Tensor, answer: Int[Tensor, " m"]) -> Float[Tensor, " n"]:
        """Return Σ log p of an answer's tokens for each text."""
        start = answer.new_full((1,), self.config.decoder_start_token_id)
        given = torch.cat([start, answer[:-1]]).expand(len(states), -1)
        logs = functional.log_softmax(self.lm_head(self._hidden(states, mask, given)).float(), dim=-1)
        return logs.gather(2, answer.expand(len(states), -1)[:, :, None])[:, :, 0].sum(dim=1)


class Gpt2(_Made, GPT2Model):
    """GPT-2 as it is merged and exported."""

    def forward(self, samples: Tensor) -> Tensor:
        """Refuse: texts are not classified with it.

        Raises:
            ZooError: always.
        """
        raise ZooError("GPT-2 is merged and exported here; texts are not classified with it.")


MODELS: dict[str, tuple[type, type]] = {
    "roberta": (RobertaConfig, Roberta),
    "distilbert": (DistilBertConfig, DistilBert),
    "t5": (T5Config, T5Ranker),
    "gpt2": (GPT2Config, Gpt2),
}


def outline(config: Mapping[str, Any]) -> nn.Module:
    """Return a model on the meta device: names and shapes, no memory.

    Args:
        config: as :func:`.config.checked` gives it.

    Raises:
        ZooError: transformers cannot make a model of it.
    """
    of_config, of_model = MODELS[config["model_type"]]
    try:
        made = of_config.from_dict(plain_config(config))
        more = {"add_pooling_layer": False} if of_model is Roberta else {}
        made._attn_implementation = "eager" if of_model is T5Ranker else "sdpa"
        if of_model is T5Ranker:  # transformers ties whatever the config says; the weights decide
            made.tied, made.scale_decoder_outputs = config["tie_word_embeddings"], config["scale_decoder_outputs"]
        with torch.device("meta"):
            return of_model(made, **more).eval()
    except Exception as error:  # transformers raises whatever its classes do
        raise ZooError(f"No {config['model_type']} can be made of this config: {str(error)[:200]}.") from error


def answers_in(row: Int[Tensor, " length"], end: int, pad: int) -> list[Int[Tensor, " m"]]:
    """Return the answers that a row of ids holds, each with the token that ends it."""
    found, first = [], 0
    for place in (row == end).nonzero()[:, 0].tolist():
        found.append(row[first : place + 1])
        first = place + 1
    return [answer[answer != pad] for answer in found][:ANSWERS]
