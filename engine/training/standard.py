"""Training all weights of the encoder, or those of attention only."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..catalog.fine_tuning import AttentionParams, MlpParams, StandardParams
from ..catalog.row import NoParams
from ..errors import EngineError
from ..layouts import Layout
from ..zoo.encoders.training import Step, Strategy, follow, whole_encoder
from .low_rank import is_matrix
from .setting import Setting

ATTENTION = ("q", "k", "v", "out")  # matrices of a layout
PERCEPTRON = {"first": ("fc", "gate"), "second": ("proj",), "both": ("fc", "gate", "proj")}


def standard(encoder: nn.Module, params: StandardParams, setting: Setting) -> Strategy:
    """Train every parameter with AdamW.

    Source: Ilharco et al., ICLR 2023, arXiv:2212.04089, Appendix B.
    Departure: ``accumulate`` repeats the baseline of Lee et al. (arXiv:2504.14662) as published, whose loop never
        clears gradients.
    """
    whole = whole_encoder(encoder)
    return Strategy(whole.model, whole.tensors, heap_up, keeps_gradients=True) if params.accumulate else whole


def joint(encoder: nn.Module, params: NoParams, setting: Setting) -> Strategy:
    """Train every parameter on several tasks at once; the loss of a batch is the mean over its tasks.

    Source: Caruana, Machine Learning 28, 1997.
    Departure: the heads are frozen zero-shot classifiers, so that all
        that the tasks share is the encoder.
    """
    return whole_encoder(encoder)


def heap_up(step: Step) -> Tensor:
    """Take a step along the sum of this batch's gradient and all before it, which was clipped at every step."""
    loss = step.gradient()
    step.move()
    return loss


def attention_only(encoder: nn.Module, params: AttentionParams, setting: Setting) -> Strategy:
    """Train the matrices W_q, W_k, W_v, W_o of every block; everything else keeps the base's bits.

    Source: Jin et al., ICLR 2025, arXiv:2407.07089.
    Departure: a published program tests for linear layers inside attention modules, which is never true, and trains
        nothing; the named matrices are trained here, without biases unless asked for.

    Raises:
        EngineError: the encoder has no such tensors.
    """
    _narrow(encoder, "Attention-only fine-tuning", ATTENTION, params.biases, setting.layout)
    return Strategy(encoder, encoder.state_dict, follow)


def mlp_only(encoder: nn.Module, params: MlpParams, setting: Setting) -> Strategy:
    """Train matrices of every block's perceptron; everything else keeps the base's bits.

    Source: a control for Jin et al., ICLR 2025, arXiv:2407.07089.
    Departure: by default the first matrix alone, so that as many parameters are trained as attention has.

    Raises:
        EngineError: the encoder has no such tensors.
    """
    _narrow(encoder, "Training perceptrons only", PERCEPTRON[params.matrices], params.biases, setting.layout)
    return Strategy(encoder, encoder.state_dict, follow)


def _narrow(encoder: nn.Module, recipe: str, parts: Sequence[str], biases: bool, layout: Layout) -> None:
    """Let only some matrices of a layout, and their biases where they are wanted, be trained."""
    named = {matrix.name for part in parts for matrix in layout.matrices.get(part, ())}
    named |= {name.removesuffix("weight") + "bias" for name in named} if biases else set()
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(any(is_matrix(name, matrix) for matrix in named))
    if not any(parameter.requires_grad for parameter in encoder.parameters()):
        looked = f"no {' or '.join(sorted(named))}" if named else f"none in an encoder of the family {layout.family}"
        raise EngineError(
            f"{recipe} knows matrices by their names, and found {looked}, so it would train nothing. "
            "Choose another recipe, or a transformer of a family whose matrices are known."
        )
