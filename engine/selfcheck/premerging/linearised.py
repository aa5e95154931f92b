"""References of linearised encoders: features, gradients."""

from __future__ import annotations

import torch

from ...features.linearised import tangent
from ..measure import Check, Found
from ..reference import PremergingReference
from .small import own_names, small_encoder, small_trainer, some_images, stored_names, task_batch


def linear_forward(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare f(θ_0), f(θ) and the linearised features of an expert."""
    number = reference.entries[name]["params"]["expert"]
    images = some_images(reference, precision)
    base = small_encoder(reference, "base", precision)
    expert = small_encoder(reference, f"expert{number}", precision)
    before, after = dict(base.named_parameters()), dict(expert.named_parameters())
    features, change = tangent(base, before, {key: after[key] - before[key] for key in before}, images)
    got = {"f_base": features, "f_expert": expert(images), "f_lin": features + change}
    return Found(got, reference.output(name))


def linear_sum(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare task addition in tangent space: one derivative for each expert, added up."""
    stated = reference.entries[name]["params"]
    images = some_images(reference, precision)
    base = small_encoder(reference, "base", precision)
    start = dict(base.named_parameters())
    total = {key: torch.zeros_like(tensor) for key, tensor in start.items()}
    features, changes = base(images), torch.zeros(())
    for number in stated["experts"]:
        tensors = own_names(reference.weights(f"toyvit_expert{number}", precision))
        vector = {key: tensors[key] - start[key] for key in start}
        changes = changes + tangent(base, start, vector, images)[1]
        total = {key: total[key] + stated["lambda"] * vector[key] for key in start}
    moved = {key: start[key] + total[key] for key in start}
    ordinary = torch.func.functional_call(base, moved, (images,))
    return Found({"f_lin": features + stated["lambda"] * changes, "f": ordinary}, reference.output(name))


def linear_gradient(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare the loss and the gradients of the linearised model at an expert."""
    trainer = small_trainer(reference, precision, "linearised")
    expert = own_names(reference.weights("toyvit_expert0", precision))
    with torch.no_grad():
        for key, parameter in trainer.encoder.named_parameters():
            parameter.copy_(expert[key])
    images, labels = task_batch(reference, precision)
    loss = trainer.gradient(images, [labels])
    gradients = {key: parameter.grad for key, parameter in trainer.encoder.named_parameters()}
    return Found({"loss": loss, **stored_names(gradients, "grad.")}, reference.output(name))


CHECKS: dict[str, Check] = {
    **{f"linear_forward_expert{number}": linear_forward for number in range(3)},
    **{f"linear_forward_sum_l{scaling}": linear_sum for scaling in (0.3, 1.0)},
    "linear_gradient_expert0": linear_gradient,
}
