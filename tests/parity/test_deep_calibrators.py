"""Deep calibrators against the published programs' numbers (tests/reference/calibrators/README.md)."""

from functools import partial

import numpy as np
import open_clip.transformer as vit
import pytest
import torch
from safetensors.torch import load_file

from engine.analysis.accuracy import entropy, logits
from engine.calibration import IntervMerge, SurgeryV2
from engine.calibration.interventions import FUNCTIONS
from engine.calibration.tower import Tower
from engine.catalog.calibrators import IntervMergeParams, SurgeryV2Params

from .test_calibrators import REFERENCE, reference

EXACT = {"rtol": 1e-9, "atol": 1e-12}
THEIR_NAMES = {"rotation": "R", "source": "W", "bias": "b"}
FREE_NAMES = {"source": "W1", "bias": "b1", "target": "W2", "target_bias": "b2"}
SIZES = {"dim": 10, "width": 16, "blocks": 3, "tokens": 5}


def tiny_encoder(numbers, owner, batch_first=True):
    """The references' 3-block vision transformer with the weights of ``owner``."""
    visual = vit.VisionTransformer(8, 4, 16, 3, 2, 4.0, output_dim=10, act_layer=vit.QuickGELU).double()
    prefix = f"{owner}.visual."
    visual.load_state_dict({k.removeprefix(prefix): v for k, v in numbers.items() if k.startswith(prefix)})
    if not batch_first:
        visual.transformer.batch_first = False
        for block in visual.transformer.resblocks:
            block.attn.batch_first = False
    return visual.eval()


def names_of(function):
    return FREE_NAMES if function in ("noreft", "nodireft") else THEIR_NAMES


INTERVENTIONS = {
    "lobireft": "interv_fn_LobiReFT",
    "consreft": "interv_fn_ConsReFT",
    "direft": "interv_fn_DiReFT",
    "loreft": "interv_fn_LoReFT",
    "noreft": "interv_fn_NoReFT_default",
    "nodireft": "interv_fn_NodiReFT_not_in_table7",
}


@pytest.mark.parametrize("function", INTERVENTIONS)
def test_intervention_functions_match(function):
    numbers = reference(INTERVENTIONS[function])
    parts, delta = FUNCTIONS[function]
    leaves = {part: numbers[names_of(function)[part]].clone().requires_grad_() for part in parts}
    output = numbers["h"] + delta(numbers["h"], leaves)
    torch.testing.assert_close(output, numbers["output"], **EXACT)
    loss = (output - numbers["target"]).abs().mean()
    torch.testing.assert_close(loss[None], numbers["l1"], **EXACT)
    loss.backward()
    for part in parts:
        torch.testing.assert_close(leaves[part].grad, numbers[f"grad_{names_of(function)[part]}"], **EXACT)


MINI = {
    "interv_mini_default_slice0": ("noreft", "start", 64, 0),
    "interv_mini_bias_slice0": ("lobireft", "start", 64, 0),
    "interv_mini_bias_shift": ("lobireft", "shifted", 64, 3),
    "interv_mini_multi4x16": ("noreft", "four", 64, 0),
}


@pytest.mark.parametrize("name", MINI)
def test_mini_interventions_match(name):
    function, mini, dims, block = MINI[name]
    numbers = reference(name)
    config = IntervMergeParams(rank=2, function=function, mini=mini, mini_dims=dims, blocks=(block,))
    calibrator = IntervMerge()
    sizes = {"dim": 512, "width": 768, "blocks": 12, "tokens": 5}
    stack = calibrator.reset(("A",), sizes, config, dtype=torch.float64)
    theirs = names_of(function)
    slices = calibrator.shapes()["bias"][2]
    suffixes = [f"_{number}" for number in range(slices)] if function == "noreft" else [""]
    for part in calibrator.shapes():
        for number, suffix in enumerate(suffixes):
            getattr(calibrator, part).data[0, 0, 0, number] = numbers[theirs[part] + suffix]
    tokens = numbers["h"].view(-1, 1, 768)  # five tokens as five images of one token
    output = calibrator.change(tokens, 0, slice(None)).view(numbers["output"].shape)
    torch.testing.assert_close(output, numbers["output"], **EXACT)
    stack.gradients.zero_()
    (output - numbers["target"]).abs().mean().backward()
    for part in calibrator.shapes():
        for number, suffix in enumerate(suffixes):
            mine = getattr(calibrator, part).grad[0, 0, 0, number]
            torch.testing.assert_close(mine, numbers[f"grad_{theirs[part]}{suffix}"], **EXACT)


TINY = {
    "interv_tiny_vit_cls_all_blocks": ("class", "all"),
    "interv_tiny_vit_cls_every_second": ("class", "every_second"),
    "interv_tiny_vit_patch_tokens": ("patches", "all"),
    "interv_tiny_vit_all_tokens": ("all", "all"),
}


def each_module(calibrator):
    """Their name of every module, with its place in the stacked tensors."""
    for place, block in enumerate(calibrator._blocks()):
        for number, token in enumerate(calibrator._tokens()):
            yield f"block{block}.tok{token}", (0, place, number, 0)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", TINY)
def test_interventions_inside_an_encoder_match(name, batch_first):
    numbers = reference(name)
    positions, blocks = TINY[name]
    calibrator = IntervMerge()
    config = IntervMergeParams(rank=2, positions=positions, blocks=blocks)
    calibrator.reset(("A",), SIZES, config, dtype=torch.float64)
    for module, place in each_module(calibrator):
        for part, theirs in FREE_NAMES.items():
            getattr(calibrator, part).data[place] = numbers[f"{module}.{theirs}"]
    merged, expert = (tiny_encoder(numbers, owner, batch_first) for owner in ("merged", "expert"))
    images = numbers["images"]
    teacher = calibrator.teach(expert, images, config)
    torch.testing.assert_close(teacher, numbers["feature_teacher"], **EXACT)
    plain = IntervMerge().correct_features(merged, images, "A")
    torch.testing.assert_close(plain, numbers["feature_merged_no_intervention"], **EXACT)
    torch.testing.assert_close(calibrator.correct_features(merged, images, "A"), numbers["feature_student"], **EXACT)
    tower = Tower(merged)
    student = calibrator.student(tower, calibrator.prefix(tower, images), slice(None))
    loss = calibrator.losses(student, teacher[None])
    torch.testing.assert_close(loss, numbers["l1"], **EXACT)
    loss.sum().backward()
    for module, place in each_module(calibrator):
        for part, theirs in FREE_NAMES.items():
            mine = getattr(calibrator, part).grad[place]
            torch.testing.assert_close(mine, numbers[f"{module}.grad_{theirs}"], **EXACT)


class MergedStudent(torch.nn.Module):
    """An encoder whose weights are replaced at every call, with a calibrator inside."""

    def __init__(self, visual, calibrator):
        super().__init__()
        self.visual, self.calibrator = visual, [calibrator]

    def forward(self, images):
        tower = Tower(self.visual)
        calibrator = self.calibrator[0]
        return calibrator.student(tower, calibrator.prefix(tower, images), slice(None))[0]


OFFICIAL_NAMES = {
    "source": "learned_source.weight",
    "bias": "learned_source.bias",
    "target": "proj_layer.weight",
    "target_bias": "proj_layer.bias",
}


@pytest.mark.parametrize(("mode", "repeats"), [("single", 1), ("dup3_official", 3)])
def test_training_together_with_merging_coefficients_matches(mode, repeats):
    """Our calibrator trains frozen coefficients only; inside somebody's loop it follows the joint trajectory."""
    numbers = load_file(REFERENCE / "interv_joint_lambda_training.safetensors")
    pretrained, expert = (dict(tiny_encoder(numbers, owner).named_parameters()) for owner in ("base", "expert"))
    calibrator = IntervMerge()
    stack = calibrator.reset(("A",), SIZES, IntervMergeParams(rank=2), dtype=torch.float64)
    for place in range(3):
        for part, theirs in OFFICIAL_NAMES.items():
            getattr(calibrator, part).data[0, place, 0, 0] = numbers[f"init.A.{place}.0.{theirs}"]
    raw = numbers["init_lambdas_raw"].clone().requires_grad_()
    visual = tiny_encoder(numbers, "base")
    student = MergedStudent(visual, calibrator)
    adam = torch.optim.Adam(list(calibrator.parameters()), lr=1e-3)
    coefficients = torch.optim.Adam([raw], lr=1e-3)
    losses = []
    for step, images in enumerate(numbers["images"]):
        scale = raw.clamp(0, 1)
        weights = {
            f"visual.{name}": pretrained[name].detach() + scale[row, 0] * (expert[name] - pretrained[name]).detach()
            for row, name in enumerate(pretrained)
        }
        feature = torch.func.functional_call(student, weights, (images,))
        with torch.no_grad():
            teacher = calibrator.teach(tiny_encoder(numbers, "expert"), images, calibrator.config)
        loss = (feature - teacher).abs().mean()
        stack.gradients.zero_()
        raw.grad = None
        loss.backward()
        if step == 0:
            torch.testing.assert_close(feature, numbers[f"{mode}_step0_feature_student"], **EXACT)
            torch.testing.assert_close(teacher, numbers[f"{mode}_step0_feature_teacher"], **EXACT)
            torch.testing.assert_close(raw.grad, numbers[f"{mode}_step0_grad_lambdas_raw"], **EXACT)
        losses.append(loss.detach())
        for _ in range(repeats):
            adam.step()
        coefficients.step()
    torch.testing.assert_close(torch.stack(losses), numbers[f"{mode}_losses"], rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(raw.detach(), numbers[f"{mode}_final_lambdas_raw"], rtol=1e-7, atol=1e-10)
    for place in range(3):
        for part, theirs in OFFICIAL_NAMES.items():
            mine = getattr(calibrator, part)[0, place, 0, 0].detach()
            torch.testing.assert_close(mine, numbers[f"{mode}_final.A.{place}.0.{theirs}"], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", ["surgeryv2_tiny_vit", "surgeryv2_tiny_vit_at_init"])
@pytest.mark.parametrize(("loss", "key"), [("l1", "l1losses"), ("mse", "l2losses")])
def test_surgery_v2_matches(name, loss, key):
    numbers = reference(name)
    config = SurgeryV2Params(rank=3, loss=loss)
    calibrator = SurgeryV2()
    calibrator.reset(("A",), SIZES, config, dtype=torch.float64)
    for block in range(3):
        calibrator.down.data[0, block] = numbers[f"W_down_{block}"]
        calibrator.up.data[0, block] = numbers[f"W_up_{block}"]
    calibrator.down_output.data[0] = numbers["W_down_final"]
    calibrator.up_output.data[0] = numbers["W_up_final"]
    merged, expert = (tiny_encoder(numbers, owner) for owner in ("merged", "expert"))
    teacher = calibrator.teach(expert, numbers["images"], config)
    theirs = [numbers[f"teacher_target_{part}"] for part in (0, 1, 2, "final")]
    torch.testing.assert_close(teacher, torch.cat(theirs, 1), **EXACT)
    features = calibrator.correct_features(merged, numbers["images"], "A")
    torch.testing.assert_close(features, numbers["final_student"], **EXACT)
    tower = Tower(merged)
    prefix = calibrator.prefix(tower, numbers["images"])
    torch.testing.assert_close(prefix[0].detach(), numbers["tokens_before_surgery_0"], **EXACT)
    student = calibrator.student(tower, prefix, slice(None))
    theirs = [numbers[f"student_target_{part}"] for part in (0, 1, 2, "final")]
    torch.testing.assert_close(student[0].detach(), torch.cat(theirs, 1), **EXACT)
    losses = calibrator.losses(student, teacher[None])
    torch.testing.assert_close(losses.detach(), numbers[key], **EXACT)
    if loss == "l1":
        losses.sum().backward()
        for block in range(3):
            torch.testing.assert_close(calibrator.down.grad[0, block], numbers[f"grad_W_down_{block}"], **EXACT)
            torch.testing.assert_close(calibrator.up.grad[0, block], numbers[f"grad_W_up_{block}"], **EXACT)
        torch.testing.assert_close(calibrator.down_output.grad[0], numbers["grad_W_down_final"], **EXACT)
        torch.testing.assert_close(calibrator.up_output.grad[0], numbers["grad_W_up_final"], **EXACT)


def test_head_and_entropy_match():
    numbers = {name: value.numpy() for name, value in reference("head_and_entropy").items()}
    scores = logits(numbers["feature"], numbers["head_weight"], 1.0) + numbers["head_bias"]
    close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)
    close(scores, numbers["logits"])
    close(entropy(scores), numbers["entropy_per_sample"])


@pytest.mark.parametrize(("name", "key"), [("surgery_forward", "logits"), ("surgery_forward", "logits_test_time")])
def test_logits_of_corrected_features_match(name, key):
    numbers = {name: value.numpy() for name, value in reference(name).items()}
    scores = logits(numbers["corrected"], numbers["head_weight"], 1.0) + numbers["head_bias"]
    np.testing.assert_allclose(scores, numbers[key], rtol=1e-10)
