"""Heads from prompts equal what open_clip's own text encoder gives, on texts cut to their length."""

import open_clip
import pytest
import torch
from open_clip.model import CLIP

from engine.errors import ZooError
from engine.manifest import Task
from engine.weights import Memory
from engine.zoo.architecture import text_parameters
from engine.zoo.prompts import has_text_side, prompt_heads

CONFIG = {
    "embed_dim": 24,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 32, "layers": 1, "head_width": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
TASK = Task(
    name="pets", domain="in", classes=("cat", "very large dog", "owl"), templates=("a photo of a {}.", "{}, art")
)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return CLIP(**CONFIG).eval()


def silent(fraction, message=""):
    """Nobody listens."""


def test_heads_are_means_of_normalised_prompts(model):
    seen = []
    weights = Memory(model.state_dict())
    found = prompt_heads(CONFIG, weights, [TASK], lambda fraction, message="": seen.append(fraction))["pets"]
    with torch.no_grad():
        for row, name in zip(found, TASK.classes, strict=True):
            texts = open_clip.tokenize([template.format(name) for template in TASK.templates])
            mean = model.encode_text(texts, normalize=True).mean(dim=0)
            torch.testing.assert_close(row, mean / mean.norm(), rtol=1e-5, atol=1e-6)
    assert seen[-1] == 1


def test_a_base_without_its_text_side_is_refused(model):
    kept = {name: value for name, value in model.state_dict().items() if name != "ln_final.weight"}
    assert has_text_side(Memory(model.state_dict()))
    assert not has_text_side(Memory(kept))
    with pytest.raises(ZooError, match="lacks ln_final"):
        prompt_heads(CONFIG, Memory(kept), [TASK], silent)
    other = {**CONFIG, "text_cfg": {**CONFIG["text_cfg"], "vocab_size": 9}}
    with pytest.raises(ZooError, match="other tokens"):
        prompt_heads(other, Memory(kept), [TASK], silent)


def test_parameters_of_the_text_side_are_counted(model):
    text = sum(value.numel() for name, value in model.named_parameters() if not name.startswith("visual."))
    assert text_parameters(CONFIG) == text
    assert text_parameters(open_clip.get_model_config("ViT-B-32")) == 63_428_097  # 151,277,313 less the image side
