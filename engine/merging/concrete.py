"""Concrete Subspace Learning: one relaxed mask for all task vectors, learned without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..catalog.learned import ConcreteParams
from ..catalog.optimisation import AdaMergingParams
from ..types import Context, MergeInfo, Static, TaskVectors, Weights
from ..weights.on_device import on_device
from .adamerging import bounded, coefficient_gradient, combine, entropy, learn_coefficients, predict
from .assemble import Changed, add_to_base
from .chance import bernoulli, uniform

METHOD = "concrete"
OF_THE_MASK = 4  # tensors of all layers' size: its logits, their gradients, and Adam's two means
Streams = Mapping[str, Iterator[tuple[Tensor, Tensor | None]]]


def concrete(base: Weights, task_vectors: TaskVectors, params: ConcreteParams, context: Context) -> Static:
    """Learn a mask over all entries, the same for every expert, and merge what it leaves of the task vectors.

    With learned coefficients, every update of the mask follows one step on the coefficients under that mask, and in
    the end they are learned anew under the final mask. Holds the mask, its optimiser and one model.

    Source: Tang et al., 2023, arXiv:2312.06173, Algorithm 1 and 2; tanganke/fusion_bench.
    Departure: the noise is drawn with the run's seed, for each step and layer. The final mask is one sample of the
        learned distribution, as in the authors' code; the paper does not say.
    """
    streams = {task: context.batches(task, "adapt", params.batch_size) for task in dict.fromkeys(context.tasks)}
    mask = Mask({name: torch.zeros(task_vectors.shape(name)) for name in task_vectors.names}, params, context.seed)
    losses = _learn_mask(base, task_vectors, params, context, mask, streams)
    final = mask.final()
    masked = under(task_vectors, final.__getitem__)
    rows = torch.full((len(masked.names), len(masked.experts)), params.scaling, dtype=torch.float64)
    if params.coefficients != "fixed":
        rows, more = learn_coefficients(base, masked, _as_adamerging(params), context)
        losses += more
    by_layer = dict(zip(masked.names, rows, strict=True))
    details = {
        "layers": list(masked.names) if params.coefficients == "layer" else [],
        "coefficients": {
            expert: column.tolist() if params.coefficients == "layer" else column[0].item()
            for expert, column in zip(masked.experts, rows.T, strict=True)
        },
        "mask_mean": mask.mean(),
        "loss": [round(loss, 6) for loss in losses],
    }
    return add_to_base(
        base, masked, lambda name: combine(by_layer[name], masked.stack(name)), MergeInfo(details=details)
    )


def under(task_vectors: TaskVectors, mask: Callable[[str], Tensor]) -> Changed:
    """Return task vectors multiplied by a mask, the same for every expert, by layer."""
    return Changed(task_vectors, lambda name, stack, experts: stack.mul_(mask(name).to(stack.dtype)))


def relaxed(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """Return a relaxed Bernoulli sample: σ((log u/(1−u) + x)/T) of logits x and uniform noise u, both of one shape."""
    edge = torch.finfo(noise.dtype).eps
    noise = noise.clamp(edge, 1 - edge)
    return torch.sigmoid((noise.log() - (-noise).log1p() + logits) / temperature)


def rescaled(mask: Tensor) -> Tensor:
    """Divide a mask by its mean, so that the merged vector keeps its size; one that is empty or all zeros stays."""
    mean = mask.mean() if mask.numel() else mask.new_ones(())
    return mask / torch.where(mean > 0, mean, 1.0)


@dataclass
class Mask:
    """The logits of every entry, and samples of masks that divide by their mean."""

    logits: dict[str, Tensor]
    params: ConcreteParams
    seed: int

    def sample(self, name: str, step: int) -> Tensor:
        """Return the mask of a layer at a step, differentiable in the logits; the same every time."""
        logits = self.logits[name]
        noise = uniform(tuple(logits.shape), self.seed, METHOD, str(step), name).to(logits.device)
        return rescaled(relaxed(logits, noise, self.params.temperature))

    def move(self, device: torch.device) -> None:
        """Keep the logits on a device from now on, without their gradients."""
        self.logits = {name: logits.detach().to(device) for name, logits in self.logits.items()}

    @torch.no_grad()
    def final(self) -> dict[str, Tensor]:
        """Return the mask that the merged model takes."""
        if self.params.mask == "continuous":
            return {name: self.sample(name, self.params.steps) for name in self.logits}
        return {
            name: rescaled(bernoulli(logits.sigmoid(), tuple(logits.shape), self.seed, METHOD, name).float())
            for name, logits in self.logits.items()
        }

    def mean(self) -> float:
        """Return the mean probability of an entry to be kept."""
        count = sum(logits.numel() for logits in self.logits.values())
        total = sum(logits.detach().sigmoid().sum(dtype=torch.float64).item() for logits in self.logits.values())
        return round(total / max(count, 1), 6)


def _learn_mask(
    base: Weights, task_vectors: TaskVectors, params: ConcreteParams, context: Context, mask: Mask, streams: Streams
) -> list[float]:
    """Update the mask's logits, on the device that holds the task vectors; returns the loss of every step."""
    read, device = task_vectors, context.head(context.tasks[0]).weight.device
    base, task_vectors = on_device(base, read, device, OF_THE_MASK)
    mask.move(torch.device("cpu") if task_vectors is read else device)
    start = torch.full((_rows(params, task_vectors), len(task_vectors.experts)), params.scaling, dtype=torch.float64)
    learned = start.clone().requires_grad_()
    inner = torch.optim.Adam([learned], lr=params.inner_learning_rate)
    for logits in mask.logits.values():
        logits.requires_grad_()
    outer = torch.optim.Adam(mask.logits.values(), lr=params.learning_rate)
    settings, losses = _as_adamerging(params), []
    for step in range(params.steps):
        report = _Report(context, step, params.steps)
        if params.coefficients != "fixed":
            with torch.no_grad():
                learned.copy_(start)
            _inner_step(base, task_vectors, mask, step, learned, inner, settings, context, _next(streams))
        rows = bounded(learned, settings, len(task_vectors.names)).detach()
        losses.append(mask_gradient(base, task_vectors, mask, step, rows, context, _next(streams), report))
        outer.step()
        outer.zero_grad()
    mask.move(torch.device("cpu"))
    return losses


def _inner_step(
    base: Weights,
    task_vectors: TaskVectors,
    mask: Mask,
    step: int,
    learned: Tensor,
    optimiser: torch.optim.Optimizer,
    settings: AdaMergingParams,
    context: Context,
    batches: dict[str, Tensor],
) -> None:
    """Take one step of AdaMerging on task vectors under this step's mask."""
    masked = under(task_vectors, lambda name: mask.sample(name, step).detach())
    used = bounded(learned, settings, len(task_vectors.names))
    _, slope = coefficient_gradient(base, masked, used.detach(), batches, context)
    optimiser.zero_grad()
    used.backward(slope)
    optimiser.step()


def mask_gradient(
    base: Weights,
    task_vectors: TaskVectors,
    mask: Mask,
    step: int,
    rows: Tensor,
    context: Context,
    batches: dict[str, Tensor],
    report: Callable[[float], None] = lambda share: None,
) -> float:
    """Add the gradient of all tasks' summed entropy to the logits of a mask; returns the loss.

    The merged weights are leaves, so that tasks go backwards one after the other and no graph spans them all.

    Args:
        base: the pretrained weights.
        task_vectors: of the experts.
        mask: whose logits get the gradient.
        step: says which sample of the mask.
        rows: coefficients (L, K).
        context: encodes images and gives heads.
        batches: images by task.
        report: told the share of tasks that are done.
    """
    device, dtype = next(iter(batches.values())).device, task_vectors.dtype
    weights = {name: base.tensor(name).to(device) for name in base.names if name not in task_vectors.names}
    for row, name in zip(rows, task_vectors.names, strict=True):
        vector = combine(row, task_vectors.stack(name)).mul_(mask.sample(name, step).detach().to(dtype))
        weights[name] = vector.add_(base.tensor(name).to(dtype)).to(device).requires_grad_()
    total = 0.0
    for done, (task, images) in enumerate(batches.items()):
        report(done / len(batches))
        loss = entropy(predict(context.forward(weights, images), context.head(task)))
        loss.backward()
        total += loss.item()
    for row, name in zip(rows, task_vectors.names, strict=True):
        slope = weights[name].grad
        if slope is not None:
            vector, sample = combine(row, task_vectors.stack(name)), mask.sample(name, step)
            sample.backward(vector.mul_(slope.to(vector)).to(sample.dtype))
    return total


@dataclass(frozen=True)
class _Report:
    context: Context
    step: int
    steps: int

    def __call__(self, share: float) -> None:
        self.context.progress((self.step + share) / self.steps, f"Learning the mask, step {self.step + 1}")


def _next(streams: Streams) -> dict[str, Tensor]:
    return {task: next(stream)[0] for task, stream in streams.items()}


def _rows(params: ConcreteParams, task_vectors: TaskVectors) -> int:
    return len(task_vectors.names) if params.coefficients == "layer" else 1


def _as_adamerging(params: ConcreteParams) -> AdaMergingParams:
    """Return the settings with which coefficients are learned."""
    return AdaMergingParams.model_construct(
        granularity="layer" if params.coefficients == "layer" else "task",
        initial=params.scaling,
        steps=params.coefficient_steps,
        batch_size=params.batch_size,
        learning_rate=params.coefficient_learning_rate,
        clamp=params.clamp,
        batches_per_step=1,
    )
