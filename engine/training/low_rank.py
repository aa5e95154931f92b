"""Low-rank adapters beside matrices of a transformer's blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..catalog.fine_tuning import LoraParams
from ..errors import EngineError
from ..layouts import OPEN_CLIP, Layout, Matrix, part_of
from ..merging.chance import uniform
from ..zoo.encoders.training import Strategy
from .setting import Setting

MATRICES = {"q": ("q",), "k": ("k",), "v": ("v",), "out": ("out",), "mlp": ("fc", "gate", "proj")}
DOWN, UP = ".lora_A", ".lora_B"


@dataclass(frozen=True)
class Adapted:
    """A matrix (out, in) with an adapter: some rows of a tensor."""

    name: str  # such as transformer.resblocks.0.attn.q
    tensor: str
    rows: slice
    shape: tuple[int, int]


def adapted_matrices(encoder: nn.Module, targets: Sequence[str], layout: Layout = OPEN_CLIP) -> list[Adapted]:
    """Find the matrices that targets name.

    Raises:
        EngineError: a target matches no tensor of the encoder.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in encoder.named_parameters()}
    found: list[Adapted] = []
    for target in targets:
        named = [(part, matrix) for part in MATRICES[target] for matrix in layout.matrices.get(part, ())]
        here = [adapted for part, matrix in named for adapted in _matching(shapes, part, matrix)]
        if not here:
            ends = ", ".join(dict.fromkeys(matrix.name for _, matrix in named))
            looked = f"(looked for {ends})" if ends else f"of the family {layout.family}"
            raise EngineError(
                f"The target '{target}' matches no tensor of this encoder {looked}, so nothing would be trained "
                "there. Choose other targets, or a transformer of a family whose matrices are known."
            )
        found += here
    return found


def _matching(shapes: Mapping[str, tuple[int, ...]], part: str, matrix: Matrix) -> list[Adapted]:
    found = []
    for name, shape in shapes.items():
        if is_matrix(name, matrix.name) and len(shape) == 2:
            size = shape[0] if matrix.third is None else shape[0] // 3
            first = 0 if matrix.third is None else matrix.third * size
            stem = name.removesuffix(".weight").rpartition(".")[0]
            found.append(Adapted(f"{stem}.{part}", name, slice(first, first + size), (size, shape[1])))
    return found


def is_matrix(name: str, matrix: str) -> bool:
    """Tell whether a tensor of an encoder is the one that blocks call so; outside of blocks its ending decides."""
    part = part_of(name)
    return part == matrix or (part == name and name.endswith(f".{matrix}"))


def adapted(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """Return W + s B A for a matrix (out, in) with factors A (rank, in) and B (out, rank).

    Source: Hu et al., ICLR 2022, arXiv:2106.09685, Eq. (3).
    """
    return weight + scale * (up @ down)


class LowRank(nn.Module):
    """An encoder whose own weights stay, with trained factors beside some matrices.

    With A at its start, B = 0 and A frozen this is the linearisation of every adapter by itself, since the derivative
    in A is zero there.
    """

    def __init__(
        self, encoder: nn.Module, matrices: Sequence[Adapted], starts: Mapping[str, Tensor], scale: float, freeze: bool
    ) -> None:
        """Wrap an encoder.

        Args:
            encoder: frozen from now on.
            matrices: that get adapters.
            starts: A (rank, in) by the matrices' names.
            scale: what B A is multiplied by, α / r.
            freeze: keep A at its start.
        """
        super().__init__()
        self.encoder, self.matrices, self.scale = encoder.requires_grad_(False), list(matrices), scale
        like = next(encoder.parameters())
        downs = [starts[matrix.name].to(like) for matrix in matrices]
        self.down = nn.ParameterList(nn.Parameter(down.clone(), requires_grad=not freeze) for down in downs)
        self.up = nn.ParameterList(
            nn.Parameter(like.new_zeros(matrix.shape[0], len(down)))
            for matrix, down in zip(matrices, downs, strict=True)
        )

    def forward(self, samples: Tensor) -> Tensor:
        """Return features (n, dim) through the adapted encoder."""
        return functional_call(self.encoder, self.weights(), (samples,))

    def weights(self) -> dict[str, Tensor]:
        """Return the adapted tensors by the encoder's names; differentiable in the factors."""
        parts: dict[str, dict[int, Tensor]] = {}
        own = dict(self.encoder.named_parameters())
        for matrix, down, up in zip(self.matrices, self.down, self.up, strict=True):
            rows = adapted(own[matrix.tensor][matrix.rows], down, up, self.scale)
            parts.setdefault(matrix.tensor, {})[matrix.rows.start] = rows
        return {name: _filled(own[name], changed) for name, changed in parts.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the encoder with the products added: ordinary weights."""
        return {**self.encoder.state_dict(), **{name: tensor.detach() for name, tensor in self.weights().items()}}

    def factors(self) -> dict[str, Tensor]:
        """Return A and B by matrix; B carries the scale, so that B A is what was added."""
        found = {}
        for matrix, down, up in zip(self.matrices, self.down, self.up, strict=True):
            found[matrix.name + DOWN], found[matrix.name + UP] = down.detach(), self.scale * up.detach()
        return found


def _filled(whole: Tensor, changed: Mapping[int, Tensor]) -> Tensor:
    """A tensor with some of its blocks of rows replaced, each named by its first row."""
    parts, here = [], 0
    for start, rows in sorted(changed.items()):
        parts += [whole[here:start], rows]
        here = start + len(rows)
    return torch.cat([*parts, whole[here:]])


def random_starts(matrices: Sequence[Adapted], rank: int, seed: int) -> dict[str, Tensor]:
    """Draw A for each matrix, uniform in ±1/√in; the same for all tasks of a seed."""
    return {matrix.name: drawn_start(matrix.name, rank, matrix.shape[1], seed) for matrix in matrices}


def drawn_start(matrix: str, rank: int, width: int, seed: int) -> Tensor:
    """Draw A (rank, width) of one matrix by its name, such as ``transformer.resblocks.0.attn.q``."""
    return (2 * uniform((rank, width), seed, "lora", matrix) - 1) / math.sqrt(width)


def place_of_matrix(name: str, layout: Layout = OPEN_CLIP) -> tuple[str, int | None] | None:
    """Return the tensor that a matrix lies in, and which third of its rows it is; None for a name of another form."""
    stem, _, part = name.rpartition(".")
    for matrix in layout.matrices.get(part, ()):
        inner = matrix.name.removesuffix(".weight").rpartition(".")[0]
        if stem.endswith(f".{inner}"):
            return stem.removesuffix(inner) + matrix.name, matrix.third
    return None


def wrap(
    encoder: nn.Module, params: LoraParams, starts: Mapping[str, Tensor], matrices: Sequence[Adapted], freeze: bool
) -> Strategy:
    """Return the strategy of an encoder with adapters.

    Raises:
        EngineError: the rank exceeds a side of a matrix.
    """
    small = min(matrices, key=lambda matrix: min(matrix.shape))
    if params.rank > min(small.shape):
        raise EngineError(
            f"Rank {params.rank} exceeds a side of {small.name}, which is {small.shape[0]} × {small.shape[1]}. "
            f"Choose a rank of at most {min(small.shape)}."
        )
    model = LowRank(encoder, matrices, starts, params.alpha / params.rank, freeze)
    return Strategy(model, model.tensors, factors=model.factors)


def lora(encoder: nn.Module, params: LoraParams, setting: Setting) -> Strategy:
    """Train A and B beside the targets, B from zero.

    Source: Hu et al., ICLR 2022, arXiv:2106.09685.
    Departure: no dropout. A starts from the same random matrix for all tasks of one seed, so that factors of experts
        can be added.
    """
    matrices = adapted_matrices(encoder, params.targets, setting.layout)
    return wrap(encoder, params, random_starts(matrices, params.rank, setting.seed), matrices, freeze=False)


def l_lora(encoder: nn.Module, params: LoraParams, setting: Setting) -> Strategy:
    """Train B beside the targets with A frozen at its start, which is the linearised adapter.

    Source: Tang et al., ICLR 2024, arXiv:2310.04742, §4.
    Departure: the paper names q and v; the authors' code writes v with a typing error and adapts q only (preset), and
        scales images without CLIP's mean and deviation. No dropout.
    """
    matrices = adapted_matrices(encoder, params.targets, setting.layout)
    return wrap(encoder, params, random_starts(matrices, params.rank, setting.seed), matrices, freeze=True)
