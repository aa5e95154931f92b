"""Twin-Merging: what experts share is merged, what is their own is compressed and mixed for every image."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..catalog.routing import TwinParams
from ..errors import MergeError
from ..types import Context, Forward, MergeInfo, PerSample, TaskVectors, Tensors, Weights
from .adamerging import combine
from .compressed import KEPT, restored, separate
from .masked import distinct_tasks
from .routed import EXPERTS, ROUTER, VECTOR, RoutedEncoder, by_name, per_image, shared_weights, tensors_under

ROUTING = "routing"
CHOICES = ("mixture", "best")


def twin(base: Weights, task_vectors: TaskVectors, params: TwinParams, context: Context) -> PerSample:
    """Merge experts by task arithmetic, and add a low-rank part of each expert's rest as a router says.

    Source: Lu et al., NeurIPS 2024, arXiv:2406.15479, Algorithm 1; the router of LZY-the-boys/Twin-Merging.
    Departure: the authors merge language models, and the router reads the mean of the last hidden states; here it
        reads the image's features. They keep the epoch that is best on test data; here the last one counts. Only the
        task of an image is used, so that unlabelled images serve where they take validation data.
    """
    tasks = distinct_tasks(context)
    parts = separate(task_vectors, params, context)
    extra = sum(tensor.numel() for name, tensor in parts.items() if not name.startswith((VECTOR, KEPT)))
    router, report = _train(base, parts, params, context, tasks, by_name(task_vectors))
    parts |= {ROUTER + name: tensor.to(task_vectors.dtype) for name, tensor in router.items()}
    parts[ROUTING] = torch.tensor(CHOICES.index(params.routing))
    info = MergeInfo(
        extra_parameters=extra + sum(tensor.numel() for tensor in router.values()),
        extra_bits=8 * sum(tensor.numel() for name, tensor in parts.items() if name.startswith(KEPT)),
        details={"experts": list(task_vectors.experts), **report},
    )
    return PerSample(parts, rebuild, info)


def rebuild(base: Weights, parts: Tensors, forward: Forward) -> TwinEncoder:
    """Rebuild the encoder from what was stored: ``vector/``, every expert's own compressed part, and ``router/``."""
    tensors = {
        **{f"weights/{name}": tensor for name, tensor in shared_weights(base, tensors_under(parts, VECTOR)).items()},
        **{EXPERTS + name: tensor for name, tensor in restored(base, parts).items()},
        **{ROUTER + name: tensor for name, tensor in tensors_under(parts, ROUTER).items()},
    }
    return TwinEncoder(tensors, forward, CHOICES[int(parts.get(ROUTING, 0))])


class TwinEncoder(RoutedEncoder):
    """θ* + Σ_k w_k(x) v_k, where w is a softmax over the experts, or the best expert alone."""

    def __init__(self, tensors: Tensors, forward: Forward, routing: str) -> None:
        """Hold shared weights, every expert's own part (K, *shape) and the router."""
        super().__init__(tensors, forward)
        self.routing = routing

    def gates(self, images: Tensor) -> Tensor:
        """Return each expert's share in every image: (n, K), rows sum to 1."""
        tensors = self.tensors
        logits = route(self.encode(tensors_under(tensors, "weights/"), images), tensors_under(tensors, ROUTER))
        if self.routing == "mixture":
            return logits.softmax(dim=1)
        return functional.one_hot(logits.argmax(dim=1), logits.shape[1]).to(logits.dtype)

    def mix(self, gates: Tensor) -> dict[str, Tensor]:
        """Return the weights for gates (K,)."""
        tensors = self.tensors
        weights = tensors_under(tensors, "weights/")
        for name, stack in tensors_under(tensors, EXPERTS).items():
            weights[name] = weights[name] + combine(gates, stack)
        return weights

    def weights_of(self, image: Tensor) -> dict[str, Tensor]:
        """Return the weights that one image (3, h, w) is encoded with."""
        return self.mix(self.gates(image[None])[0])

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, dim) of images (n, 3, h, w)."""
        gates = self.gates(images)
        if self.routing == "mixture":
            entries = sum(tensor.numel() for name, tensor in self.tensors.items() if name.startswith("weights/"))
            return per_image(lambda gate, image: self.encode(self.mix(gate), image[None])[0], entries, gates, images)
        best = gates.argmax(dim=1)
        features: Tensor | None = None
        for expert in best.unique():
            rows = best == expert
            found = self.encode(self.mix(gates[rows][0]), images[rows])
            features = found.new_empty(len(images), found.shape[1]) if features is None else features
            features[rows] = found
        return features


def route(features: Tensor, router: Tensors) -> Tensor:
    """Return the logits (n, K) of a perceptron with two hidden layers on features (n, dim)."""
    hidden = features.to(router["0.weight"].dtype)
    for number in (0, 1):
        hidden = functional.linear(hidden, router[f"{number}.weight"], router[f"{number}.bias"])
        hidden = functional.leaky_relu(hidden)
    return functional.linear(hidden, router["2.weight"], router["2.bias"])


def _train(
    base: Weights, parts: Tensors, params: TwinParams, context: Context, tasks: tuple[str, ...], order: list[int]
) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Train the router to tell tasks apart by the shared model's features; experts are counted in ``order``."""
    rows = [_features(base, parts, tasks[expert], params.examples, context) for expert in order]
    features = torch.cat(rows)
    labels = torch.cat([torch.full((len(found),), number) for number, found in enumerate(rows)])
    if len(features) < 2:
        raise MergeError("The router of Twin-Merging needs at least two images to learn from. Use more images.")
    losses = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        network = _network(features.shape[1], len(order))
        optimiser = torch.optim.AdamW(network.parameters(), lr=params.learning_rate, weight_decay=0.0)
        decay = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda epoch: 1 - epoch / max(params.epochs, 1))
        count = min(-(-len(features) // params.batch_size), len(features) // 2)
        for epoch in range(params.epochs):
            context.progress(0.75 + 0.25 * epoch / params.epochs, f"Training the router, epoch {epoch + 1}")
            for batch in torch.randperm(len(features)).tensor_split(count):
                loss = functional.cross_entropy(network(features[batch]), labels[batch])
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimiser.step()
            decay.step()
            losses.append(round(loss.item(), 6))
    router = _folded(network.eval())
    back = torch.tensor([order.index(expert) for expert in range(len(order))])
    router |= {name: router[name][back] for name in ("2.weight", "2.bias")}
    right = route(features, router).argmax(dim=1) == back.argsort()[labels]
    return router, {"router_accuracy": round(100 * right.float().mean().item(), 2), "loss": losses}


@torch.no_grad()
def _features(base: Weights, parts: Tensors, task: str, examples: int, context: Context) -> Tensor:
    """Return float32 features (examples, dim) of a task's adaptation images through the shared model."""
    stream = context.batches(task, "adapt", min(examples, 32))
    images = next(stream)[0]
    weights = shared_weights(base, tensors_under(parts, VECTOR), images.device)
    rows: list[Tensor] = []
    done = 0
    while done < examples:
        rows.append(context.forward(weights, images[: examples - done]).float().cpu())
        done += len(rows[-1])
        share = (context.tasks.index(task) + min(done / examples, 1)) / len(context.tasks)
        context.progress(0.5 + 0.25 * share, f"Encoding images of {task}")
        images = next(stream)[0] if done < examples else images
    return torch.cat(rows)


def _network(dim: int, experts: int) -> nn.Sequential:
    """Return the authors' router: two hidden layers of twice the input's width, batch norm, leaky ReLU, dropout."""
    wide = 2 * dim

    def hidden(width: int) -> list[nn.Module]:
        return [nn.Linear(width, wide), nn.BatchNorm1d(wide), nn.LeakyReLU(), nn.Dropout(0.5)]

    return nn.Sequential(*hidden(dim), *hidden(wide), nn.Linear(wide, experts))


@torch.no_grad()
def _folded(network: nn.Sequential) -> dict[str, Tensor]:
    """Return the trained router as three linear layers, batch norm multiplied in."""
    router = {}
    for number in (0, 1):
        linear, norm = network[4 * number], network[4 * number + 1]
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        router[f"{number}.weight"] = linear.weight * scale[:, None]
        router[f"{number}.bias"] = (linear.bias - norm.running_mean) * scale + norm.bias
    return router | {"2.weight": network[8].weight.detach(), "2.bias": network[8].bias.detach()}
