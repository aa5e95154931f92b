"""Training all weights of the encoder, or those of attention only."""

from __future__ import annotations

import re

from torch import Tensor, nn

from ..catalog.fine_tuning import AttentionParams, MlpParams, StandardParams
from ..catalog.row import NoParams
from ..errors import EngineError
from ..zoo.encoders.training import Step, Strategy, follow, whole_encoder
from .setting import Setting

ATTENTION = re.compile(r"\.attn\.(in_proj_|out_proj\.)(weight|bias)$")
PERCEPTRON = {
    which: re.compile(rf"\.mlp\.(?:{names})\.(weight|bias)$")
    for which, names in (("first", "c_fc"), ("second", "c_proj"), ("both", "c_fc|c_proj"))
}


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
    if not _narrow(encoder, ATTENTION, params.biases):
        raise EngineError(
            "Attention-only fine-tuning found no attn.in_proj_weight or attn.out_proj.weight in this encoder, so it "
            "would train nothing. Choose another recipe, or a vision transformer of open_clip."
        )
    return Strategy(encoder, encoder.state_dict, follow)


def mlp_only(encoder: nn.Module, params: MlpParams, setting: Setting) -> Strategy:
    """Train matrices of every block's perceptron; everything else keeps the base's bits.

    Source: a control for Jin et al., ICLR 2025, arXiv:2407.07089.
    Departure: by default the first matrix alone, so that as many parameters are trained as attention has.

    Raises:
        EngineError: the encoder has no such tensors.
    """
    if not _narrow(encoder, PERCEPTRON[params.matrices], params.biases):
        raise EngineError(
            "Training perceptrons only found no mlp.c_fc.weight or mlp.c_proj.weight in this encoder, so it would "
            "train nothing. Choose another recipe, or a vision transformer of open_clip."
        )
    return Strategy(encoder, encoder.state_dict, follow)


def _narrow(encoder: nn.Module, wanted: re.Pattern[str], biases: bool) -> bool:
    """Let only some parameters be trained, and return whether there are any; the pattern ends in weight or bias."""
    for name, parameter in encoder.named_parameters():
        found = wanted.search(name)
        parameter.requires_grad_(bool(found) and (biases or found.groups()[-1] == "weight"))
    return any(parameter.requires_grad for parameter in encoder.parameters())
