"""Blocks of text encoders: what leaves them is what transformers says, and the read-out makes the features of it."""

import pytest
import torch
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel, RobertaConfig, RobertaModel

from engine.calibration.rollout import look
from engine.calibration.stations import block_outputs, lens
from engine.features.blocks import Followed
from engine.zoo.texts.bert import Bert
from engine.zoo.texts.families import FAMILIES
from engine.zoo.texts.published import DistilBert, Roberta
from tests import tiny_text_zoo
from tests.made_text_models import CLASSIFIERS

PAD = {"roberta": 0, "distilbert": 0, "bert": 0}


def made(kind):
    """A small encoder of a family, and what transformers or a loop over its own blocks says of its hidden states."""
    torch.manual_seed(3)
    if kind == "bert":
        encoder = tiny_text_zoo.model()

        def hidden(ids, mask):
            states = [encoder.embeddings(ids, torch.zeros_like(ids))]
            for layer in encoder.encoder.layer:
                states.append(layer(states[-1], mask[:, None, None, :]))
            return states

        return encoder, hidden
    encoder_class, of_config, model = {
        "roberta": (Roberta, RobertaConfig, RobertaModel),
        "distilbert": (DistilBert, DistilBertConfig, DistilBertModel),
    }[kind]
    encoder = encoder_class(of_config(**CLASSIFIERS[kind][3])).eval()

    def hidden(ids, mask):
        return model.forward(
            encoder, input_ids=ids, attention_mask=mask.long(), output_hidden_states=True
        ).hidden_states

    return encoder, hidden


@pytest.mark.parametrize("kind", PAD)
@torch.no_grad()
def test_what_leaves_a_block_is_its_hidden_state_over_the_tokens_that_are_there(kind):
    encoder, hidden = made(kind)
    assert isinstance(encoder, Followed)
    ids = torch.randint(1, 12, (5, 8), generator=torch.Generator().manual_seed(1))
    ids[1, 5:] = ids[3, 2:] = PAD[kind]
    samples, mask = torch.stack([ids, torch.zeros_like(ids)], dim=1), ids != PAD[kind]
    states = hidden(ids, mask)[1:]
    hooks = [len(block._forward_hooks) for block in encoder.stations]  # transformers' own
    found = block_outputs(encoder, samples.split(2))
    assert found["class"].shape == found["mean"].shape == (len(states), 5, states[0].shape[-1])
    for number, state in enumerate(states):
        torch.testing.assert_close(found["class"][number], state[:, 0])
        means = torch.stack([row[there].mean(0) for row, there in zip(state, mask, strict=True)])
        torch.testing.assert_close(found["mean"][number], means)
    torch.testing.assert_close(found["features"], encoder(samples))
    torch.testing.assert_close(lens(encoder, found["class"])[-1], found["features"])
    assert [len(block._forward_hooks) for block in encoder.stations] == hooks
    assert (kind == "bert") is not torch.equal(lens(encoder, found["class"]), found["class"])


def test_an_encoder_without_blocks_is_not_followed():
    assert not isinstance(torch.nn.Linear(2, 2), Followed)
    assert isinstance(Bert({**tiny_text_zoo.CONFIG, "layer_norm_eps": 1e-12}), Followed)


@pytest.mark.parametrize("kind", PAD)
@torch.no_grad()
def test_rollout_is_the_product_of_what_transformers_says_of_attention(kind):
    encoder, _ = made(kind)
    ids = torch.randint(1, 12, (5, 8), generator=torch.Generator().manual_seed(1))
    ids[1, 5:] = ids[3, 2:] = PAD[kind]
    samples, mask = torch.stack([ids, torch.zeros_like(ids)], dim=1), ids != PAD[kind]
    of_model, of_config = {
        "bert": (BertModel, BertConfig),
        "roberta": (RobertaModel, RobertaConfig),
        "distilbert": (DistilBertModel, DistilBertConfig),
    }[kind]
    config = of_config(**(tiny_text_zoo.CONFIG if kind == "bert" else CLASSIFIERS[kind][3]))
    config._attn_implementation = "eager"
    model = of_model(config, **({"add_pooling_layer": False} if kind == "roberta" else {})).eval()
    model.load_state_dict(encoder.state_dict(), strict=False)
    said = model(input_ids=ids, attention_mask=mask.long(), output_attentions=True, output_hidden_states=True)
    flow = torch.eye(8)
    for shares in said.attentions:
        flow = 0.5 * (shares.mean(1) + torch.eye(8)) @ flow
    wanted = flow[:, 0, 1:] * mask[:, 1:]
    found = look(encoder, samples.split(2), FAMILIES[kind].layout)
    torch.testing.assert_close(found.rollout, wanted / wanted.sum(1, keepdim=True))
    assert not found.rollout[~mask[:, 1:]].any()
    there = mask[:, 1:]
    torch.testing.assert_close(found.tokens[there], said.hidden_states[-2][:, 1:][there])
    assert not any(
        module._forward_hooks for name, module in encoder.named_modules() if name.endswith(("query", "q_lin"))
    )


@torch.no_grad()
def test_a_text_without_words_is_looked_at_nowhere_and_changes_no_other():
    encoder, _ = made("bert")
    ids = torch.randint(1, 12, (3, 8), generator=torch.Generator().manual_seed(1))
    ids[1, 1:] = PAD["bert"]
    samples = torch.stack([ids, torch.zeros_like(ids)], dim=1)
    found = look(encoder, [samples], FAMILIES["bert"].layout).rollout
    assert not found[1].any()
    alone = look(encoder, [samples[::2]], FAMILIES["bert"].layout).rollout
    torch.testing.assert_close(found[::2], alone)
