"""Deep calibrators: caches, places of interventions, unusable encoders."""

import open_clip.transformer as vit
import pytest
import torch

from engine.calibration import IntervMerge, SurgeryV2, fit_deep
from engine.calibration.interventions import FUNCTIONS, orthonormal
from engine.calibration.stations import block_outputs, lens
from engine.calibration.tower import Tower, frozen
from engine.catalog import CALIBRATORS, params_of
from engine.catalog.deep_calibrators import TENSORS, IntervMergeParams, SurgeryV2Params
from engine.errors import CalibrationError, RecipeError


def encoder(seed=0, **changes):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return vit.VisionTransformer(8, 4, 16, 3, 2, 2.0, output_dim=10, **changes).eval()


def images(n=20, seed=0):
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def hooked(visual, calibrator, x, task):
    """Do what IntervMerge says with hooks on the untouched modules: attention outputs are changed in place."""
    handles = []
    for place, number in enumerate(calibrator._blocks()):

        def change(module, inputs, output, place=place):
            tokens = list(calibrator._tokens())
            attended = output[0].clone()
            rows = slice(calibrator.row(task), calibrator.row(task) + 1)
            attended[:, tokens] = calibrator.change(attended[:, tokens], place, rows)
            return attended, output[1]

        handles.append(visual.transformer.resblocks[number].attn.register_forward_hook(change))
    try:
        return visual(x)
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("positions", ["class", "first", "middle", "last", "patches", "all"])
@pytest.mark.parametrize("blocks", ["all", "every_second", (1,)])
def test_interventions_equal_hooks_on_the_encoder(positions, blocks, batch_first):
    visual, other = encoder(), encoder()
    if not batch_first:
        other.transformer.batch_first = False
        for block in other.transformer.resblocks:
            block.attn.batch_first = False
    calibrator = IntervMerge()
    config = IntervMergeParams(rank=2, positions=positions, blocks=blocks)
    calibrator.reset(("A", "B"), Tower(visual).sizes(), config)
    mine = calibrator.correct_features(other, images(), "B")
    with torch.no_grad():
        torch.testing.assert_close(mine, hooked(visual, calibrator, images(), "B"), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(mine, calibrator.correct_features(visual, images(), "A"), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (IntervMerge, IntervMergeParams(steps=6, batch_size=4, blocks=(1, 2))),
        (SurgeryV2, SurgeryV2Params(steps=6, batch_size=4, rank=2)),
    ],
)
def test_training_is_the_same_with_and_without_a_cache(kind, config):
    inputs = {"A": images(9, 1), "B": images(6, 2)}
    targets = {task: kind().teach(encoder(5), x, config) for task, x in inputs.items()}
    cached, plain = kind(), kind()
    fit_deep(cached, encoder(), inputs, targets, config, 0)
    fit_deep(plain, encoder(), inputs, targets, config, 0, cache_bytes=0)
    for name, value in cached.named_parameters():
        torch.testing.assert_close(value, getattr(plain, name), rtol=1e-3, atol=1e-4)


def test_block_outputs_are_what_leaves_each_block():
    """The class token and the mean over all tokens, seen by hooks; corrected ones with a calibrator inside."""
    visual, seen = encoder(), []
    handles = [
        block.register_forward_hook(lambda module, given, out: seen.append(out))
        for block in visual.transformer.resblocks
    ]
    with torch.no_grad():
        features = visual(images(6))
    for handle in handles:
        handle.remove()
    found = block_outputs(visual, images(6).split(4))
    torch.testing.assert_close(found["class"], torch.stack([x[:, 0] for x in seen]))
    torch.testing.assert_close(found["mean"], torch.stack([x.mean(1) for x in seen]))
    torch.testing.assert_close(found["features"], features)
    torch.testing.assert_close(lens(visual, found["class"])[-1], features)
    calibrator, config = SurgeryV2(), SurgeryV2Params(rank=2)
    calibrator.reset(("A",), Tower(visual).sizes(), config)
    with torch.no_grad():
        calibrator.up.normal_(generator=torch.Generator().manual_seed(0))
        taught = calibrator.student(Tower(visual), calibrator.prefix(Tower(visual), images(6)), slice(0, 1))[0]
    inside = block_outputs(visual, [images(6)], calibrator, "A")
    torch.testing.assert_close(torch.cat([*inside["mean"], inside["features"]], 1), taught)


def test_rotations_stay_orthonormal():
    config = IntervMergeParams(rank=3, function="loreft", steps=10, batch_size=4, learning_rate=0.05)
    inputs = {"A": images(8)}
    calibrator = IntervMerge()
    fit_deep(calibrator, encoder(), inputs, {"A": torch.zeros(8, 10)}, config, 0)
    product = calibrator.rotation @ calibrator.rotation.mT
    torch.testing.assert_close(product, torch.eye(3).expand_as(product), rtol=0, atol=1e-5)
    start = IntervMerge()
    start.reset(("A",), calibrator.sizes, config)
    assert not torch.allclose(start.rotation, calibrator.rotation, atol=1e-2)
    assert (start.bias.abs() <= 0.25).all()  # 1/√k of k = 16


def test_orthonormal_leaves_orthonormal_rows_where_they_are():
    rows = torch.eye(5, dtype=torch.float64)[[3, 1]] * torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    torch.testing.assert_close(orthonormal(rows), rows)


def test_blocks():
    def of(blocks, count=12):
        return IntervMergeParams(blocks=blocks).block_numbers(count)

    assert of("all") == tuple(range(12))
    assert of("every_second") == (0, 2, 4, 6, 8, 10)
    assert of("every_third") == (0, 3, 6, 9)
    assert of("every_fourth") == (0, 4, 8)
    assert of((11, 2, 2)) == (2, 11)
    assert of("all", 24) == tuple(range(24))
    for wrong in ((12,), (-1,), ()):
        with pytest.raises(CalibrationError, match="the encoder has blocks 0 to 11"):
            of(wrong)


def test_tokens():
    def numbers(where):
        return IntervMergeParams(positions=where).token_numbers(50)

    assert [numbers(where) for where in ("class", "first", "middle", "last")] == [(0,), (1,), (25,), (49,)]
    assert numbers("patches") == tuple(range(1, 50))
    assert numbers("all") == tuple(range(50))


def test_slices():
    def of(mini, dims, block=0, width=768):
        return IntervMergeParams(mini=mini, mini_dims=dims).segment_starts(block, width)

    assert of("none", 64) == ((0,), 768)
    assert of("start", 64, 5) == ((0,), 64)
    assert of("shifted", 64, 11) == ((704,), 64)
    assert of("four", 64) == ((0, 752, 184, 568), 16)
    with pytest.raises(CalibrationError, match="leaves the token, which is 192 wide"):
        of("shifted", 64, 3, 192)
    assert of("four", 128, width=192) == ((0, 160, 32, 128), 32)
    with pytest.raises(CalibrationError, match="Use at most 128"):
        of("four", 132, width=192)
    with pytest.raises(CalibrationError, match="Use at most 40"):
        of("four", 64, width=64)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_mini_intervention_is_the_function_on_its_dimensions_alone(function):
    config = IntervMergeParams(function=function, rank=2, mini="four", mini_dims=8, blocks=(1,))
    calibrator = IntervMerge()
    calibrator.reset(("A", "B"), Tower(encoder()).sizes(), config)
    v = torch.randn(6, 1, 16, generator=torch.Generator().manual_seed(0))
    moved = calibrator.change(v, 0, slice(1, 2))
    starts, length = config.segment_starts(1, 16)
    left = torch.ones(16, dtype=torch.bool)
    for number, start in enumerate(starts):
        dims = slice(start, start + length)
        parts = {name: getattr(calibrator, name)[1, 0, 0, number] for name in TENSORS[function]}
        wanted = v[:, 0, dims] + FUNCTIONS[function](v[:, 0, dims], parts)
        torch.testing.assert_close(moved[:, 0, dims], wanted, rtol=1e-5, atol=1e-6)
        left[dims] = False
    assert left.sum() == 8
    assert torch.equal(moved[:, 0, left], v[:, 0, left])


def test_parameters_that_contradict_each_other_are_refused():
    row = CALIBRATORS["interv_merge"]
    with pytest.raises(RecipeError, match="multiple of 4"):
        params_of(row, {"mini": "four", "mini_dims": 30})
    with pytest.raises(CalibrationError, match="rank of 20 is more than the 16"):
        IntervMerge().reset(("A",), Tower(encoder()).sizes(), IntervMergeParams(rank=20))


def test_recipes_survive_json():
    row = CALIBRATORS["interv_merge"]
    config = params_of(row, {"blocks": [0, 2]})
    assert params_of(row, config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    "unusable",
    [
        torch.nn.Linear(3, 3),
        encoder(pool_type="avg"),
        encoder(attentional_pool=True, attn_pooler_heads=2),
        encoder(qk_norm=True),
    ],
    ids=["no transformer", "averaged", "pooled", "other attention"],
)
def test_other_encoders_are_refused(unusable):
    with pytest.raises(CalibrationError, match="open_clip vision transformers"):
        IntervMerge().correct_features(unusable, images(), "A")


def test_half_precision_and_other_sizes_are_refused():
    inputs = {"A": images(16)}
    with pytest.raises(CalibrationError, match="train in float32"):
        fit_deep(IntervMerge(), encoder().half(), inputs, {"A": torch.zeros(16, 10)}, IntervMergeParams(), 0)
    calibrator = IntervMerge()
    calibrator.reset(("A",), {"dim": 10, "width": 32, "blocks": 3, "tokens": 5}, IntervMergeParams())
    with pytest.raises(CalibrationError, match="trained inside an encoder of"):
        calibrator.correct_features(encoder(), images(), "A")


def test_surgery_v2_says_what_it_needs_from_the_expert():
    with pytest.raises(CalibrationError, match=r"needs 58 columns.*found 10.*`teach`"):
        fit_deep(SurgeryV2(), encoder(), {"A": images(16)}, {"A": torch.zeros(16, 10)}, SurgeryV2Params(), 0)


def test_freezing_is_undone_after_an_error():
    visual = encoder().train()
    visual.proj.requires_grad_(False)
    seen = []

    def look_and_fail():
        seen.append((visual.training, any(parameter.requires_grad for parameter in visual.parameters())))
        raise RuntimeError

    with pytest.raises(RuntimeError), frozen(visual):
        look_and_fail()
    assert seen == [(False, False)]
    assert visual.training
    assert not visual.proj.requires_grad
    assert visual.class_embedding.requires_grad
