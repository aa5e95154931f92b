"""Alignment of checkpoints, and lazy task vectors."""

import pickle

import pytest
import torch

from engine.errors import CheckpointError
from engine.weights import LazyTaskVectors, Memory, check_finite, check_same_architecture, encoder_part
from engine.weights.align import canonical_order
from engine.weights.buffers import KEPT, Buffers

BLOCK = [
    "ln_1.weight",
    "ln_1.bias",
    "attn.in_proj_weight",
    "attn.in_proj_bias",
    "attn.out_proj.weight",
    "attn.out_proj.bias",
    "ln_2.weight",
    "ln_2.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
]
STATE_DICT_ORDER = [
    "visual.class_embedding",
    "visual.positional_embedding",
    "visual.proj",
    "visual.conv1.weight",
    "visual.ln_pre.weight",
    "visual.ln_pre.bias",
    *(f"visual.transformer.resblocks.{block}.{name}" for block in range(12) for name in BLOCK),
    "visual.ln_post.weight",
    "visual.ln_post.bias",
]
LEFTOVERS = [
    "positional_embedding",
    "text_projection",
    "logit_scale",
    "token_embedding.weight",
    "ln_final.weight",
    "ln_final.bias",
    "transformer.resblocks.0.ln_1.weight",
]


def ones(names) -> Memory:
    return Memory({name: torch.ones(2) for name in names})


def test_canonical_order_is_the_state_dicts():
    assert canonical_order(sorted(STATE_DICT_ORDER)) == STATE_DICT_ORDER


def test_text_leftovers_are_dropped():
    found = encoder_part(ones(sorted(STATE_DICT_ORDER + LEFTOVERS)))
    assert list(found.names) == STATE_DICT_ORDER
    assert len(found.names) == 152


def test_an_image_encoder_alone_may_lack_the_prefix():
    found = encoder_part(ones(name.removeprefix("visual.") for name in STATE_DICT_ORDER))
    assert list(found.names) == STATE_DICT_ORDER
    assert found.shape("visual.proj") == (2,)
    assert torch.equal(found.tensor("visual.proj"), torch.ones(2))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["visual.proj", "optimizer.state"], "optimizer.state, which belong"),
        ([name.removeprefix("visual.") for name in STATE_DICT_ORDER] + LEFTOVERS[1:3], "do not say which encoder"),
        (["positional_embedding", "transformer.resblocks.0.ln_1.weight"], "do not say which encoder"),
        ([], "no tensors named visual"),
    ],
)
def test_strangers_and_ambiguous_names_are_refused(names, message):
    with pytest.raises(CheckpointError, match=message):
        encoder_part(ones(dict.fromkeys(names)))


def test_other_architectures_are_refused():
    base = Memory({"visual.proj": torch.ones(512, 512), "visual.b": torch.ones(2)})
    wider = Memory({"visual.proj": torch.ones(768, 512), "visual.b": torch.ones(2)})
    with pytest.raises(CheckpointError) as caught:
        check_same_architecture(base, wider, "dtd")
    assert str(caught.value) == (
        "Expert 'dtd' has visual.proj of shape (768, 512); the base has (512, 512). "
        "Choose checkpoints of one architecture."
    )
    with pytest.raises(CheckpointError, match=r"lacks visual\.b"):
        check_same_architecture(base, ones(["visual.proj"]), "dtd")
    with pytest.raises(CheckpointError, match=r"the base has not, visual\.c"):
        check_same_architecture(ones(["visual.b"]), ones(["visual.b", "visual.c"]), "dtd")
    check_same_architecture(base, base, "dtd")


def test_values_that_are_not_finite_are_named_and_counted():
    bad = torch.ones(5)
    bad[0], bad[1], bad[2] = torch.nan, torch.inf, -torch.inf
    with pytest.raises(CheckpointError, match=r"Expert 'dtd' has 1 NaN and 2 infinite values of 5 in x"):
        check_finite(Memory({"ok": torch.ones(2), "x": bad}), "Expert 'dtd'")


def test_large_but_finite_values_pass():
    seen = []
    huge = torch.full((3,), 1e308, dtype=torch.float64)
    check_finite(Memory({"x": huge, "n": torch.arange(3)}), "The base", lambda fraction, _="": seen.append(fraction))
    assert seen[-1] == 1.0


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("compute", [torch.float32, torch.float64], ids=str)
def test_task_vectors_are_differences_in_the_compute_dtype(stored, compute):
    base = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor([3])}
    experts = {"a": {"w": torch.tensor([1.5, 2.0]).to(stored), "n": torch.tensor([3])}, "b": base}
    vectors = LazyTaskVectors(Memory(base), {k: Memory(v) for k, v in experts.items()}, [2.0, 1.0], compute)
    assert vectors.names == ("w",)
    assert vectors.stack("w").dtype == vectors.dtype == compute
    assert vectors.stack("w").tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert vectors.vector("w", "a").tolist() == [1.0, 0.0]
    assert torch.equal(pickle.loads(pickle.dumps(vectors)).stack("w"), vectors.stack("w"))


def test_stacks_that_are_kept_are_never_overwritten():
    base = Memory({"w": torch.zeros(3), "v": torch.zeros(3)})
    expert = Memory({"w": torch.ones(3), "v": torch.full((3,), 2.0)})
    vectors = LazyTaskVectors(base, {"a": expert})
    kept = [vectors.stack(name)[0, 1:] for _ in range(5) for name in ("w", "v")]
    assert [tensor.tolist() for tensor in kept] == [[1.0, 1.0], [2.0, 2.0]] * 5


def test_buffers_are_reused_only_when_idle():
    buffers = Buffers()
    first = buffers.empty((4, 2), torch.float32)
    place, view = first.data_ptr(), first[1]
    del first
    assert buffers.empty((8,), torch.float32).data_ptr() != place, "a view still lives"
    del view
    assert buffers.empty((2, 2), torch.float64).data_ptr() == place
    many = [buffers.empty((size,), torch.float32) for size in range(KEPT + 2)]
    assert len({tensor.untyped_storage().data_ptr() for tensor in many}) == len(many)
    assert buffers.empty((0, 3), torch.float32).shape == (0, 3)
