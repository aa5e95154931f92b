"""Tokens that pad texts: which zoos have them, and what keys say of them."""

import torch

from engine.pipeline.run.context import MergeContext
from engine.pipeline.run.plan import steps_of
from engine.pipeline.tools import StepTools
from engine.recipe import Probe, parse_recipe
from engine.zoo.folder import Zoo
from tests.tiny_text_zoo import make_text_zoo


def test_keys_of_texts_say_what_is_counted_where_it_matters(zoo, store, tmp_path):
    texts = make_text_zoo(tmp_path / "texts")

    def counted(folder, method, *transforms):
        calls = [{"method": name} for name in transforms]
        run = steps_of(parse_recipe({"zoo": str(folder), "merge": {"method": method}, "transforms": calls}), store)
        return run.steps[run.merge(0)].params.identity().get("counted", "")

    assert counted(texts, "regmean") == counted(texts, "task_arithmetic", "repair") == "present"
    assert counted(texts, "task_arithmetic") == counted(texts, "fisher") == ""
    assert counted(zoo, "regmean") == counted(zoo, "task_arithmetic", "repair") == ""


def test_a_zoo_says_which_of_its_tokens_are_there(zoo, store, tmp_path):
    for folder, padded in ((zoo, False), (make_text_zoo(tmp_path / "texts"), True)):
        opened = Zoo.open(str(folder))
        context = MergeContext(
            opened, ("alpha",), {"base": "", "alpha": ""}, Probe(), 0, StepTools(store), device="cpu"
        )
        samples, _ = next(context.batches("alpha", "adapt", 4))
        there = context.present(samples)
        assert context.padded is padded
        assert (there is not None) is padded
        if padded:
            assert there.shape == (samples[:, 0].numel(),)
            assert torch.equal(there, (samples[:, 0] != 0).flatten())
