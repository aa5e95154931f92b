"""Blame: the merge without each expert, and each expert beside a task's own, scored on that task's images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import EngineError, RecipeError
from ..steps import SHARE, step
from ..viewing.anew import TrialParams, merge_alone
from ..viewing.base import View
from ..viewing.by_task import ImagesRequest, ModelInputs, plan_by_task
from ..viewing.opening import of_worst_task
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools


class BlameRequest(ImagesRequest):
    """Request to find the experts that a task loses by."""

    REFUSAL = "The experts cannot be left out"


def plan(run: RunSteps, asked: BlameRequest) -> str:
    """Plan the merges without each expert, and with each expert beside a task's own.

    Raises:
        RecipeError: no images or heads of an expert's task of classes, or fewer than two experts.
    """
    if len(run.experts) < 2:
        raise RecipeError("One expert alone is merged, so there is none to leave out. Choose at least two.")
    own = TrialParams.own(run)
    return plan_by_task(run, blame, asked, "Leaving experts out on {}", {}, lambda task: own, right=True)


@step("blame", label="Leaving experts out", params=TrialParams, inputs=ModelInputs, cost=6.0, gpu=True, threads=SHARE)
def blame(inputs: ModelInputs[Path], params: TrialParams, output: Path, tools: StepTools) -> None:
    """Merge anew without each expert and with each beside the task's own, and score one task; writes ``blame.json``.

    ``right`` holds, for every model, the images of the task that it is right for (n,), as
    :func:`engine.analysis.written.write_array` writes them: ``pretrained``, ``merged``, ``expert``, ``alone`` (the
    recipe's merge of the task's own expert only), ``without/NAME``, ``replaced/NAME`` (a random vector, tensor by
    tensor of the expert's length, in its place), ``joined/NAME`` (the own expert and this one), ``stranger/NAME`` (the
    own expert and the random vector). ``refused``: model → the reason why the method makes none.
    """
    from ...analysis.written import write_array
    from ..viewing.models import Models, pictures_of
    from ..viewing.trials import Trials

    zoo, task, own = params.sources.open(), params.task, params.expert
    pictures = pictures_of(zoo, task, params.probe, params.images)
    models, trials = Models(zoo, inputs, task, pictures.device), Trials(zoo, params, tools, pictures.device)
    names = [name for name, _ in params.experts]
    others = [name for name in names if name != own]
    made: dict[str, Any] = {
        "pretrained": lambda: models.encoder("pretrained"),
        "merged": lambda: models.encoder("merged"),
        "expert": lambda: models.encoder(own),
        "alone": lambda: trials.encoder([own]),
    }
    for name in names:
        rest = [one for one in names if one != name]
        made[f"without/{name}"] = lambda rest=rest: trials.encoder(rest)
        replaced = [trials.stranger(one) if one == name else one for one in names]
        made[f"replaced/{name}"] = lambda replaced=replaced: trials.encoder(replaced)
    for name in others:
        made[f"joined/{name}"] = lambda name=name: trials.encoder([own, name])
        made[f"stranger/{name}"] = lambda name=name: trials.encoder([own, trials.stranger(name)])
    right, refused = {}, {}
    for number, (model, make) in enumerate(made.items()):
        tools.progress(number / len(made), f"{task}, {model}")
        try:
            right[model] = write_array(pictures.right(make()))
        except EngineError as error:
            refused[model] = str(error)
    document = {
        "experts": names,
        "own": own,
        "right": right,
        "refused": refused,
        "index": write_array(pictures.rows.astype(np.int32)),
        "labels": write_array(pictures.labels.astype(np.int16)),
        "images": len(pictures.labels),
        "available": pictures.available,
    }
    (output / "blame.json").write_text(json.dumps(document))


def work(asked: BlameRequest, sizes: Sizes) -> Work:
    """Return what the merges, and the images through each of them, take."""
    models, tasks = 4 * sizes.experts + 2, 1 if asked.task else len(sizes.in_domain)
    return Work(passes=models * sizes.looked_at(asked.images, asked.task), merges=(models - 3) * tasks)


BLAME = View(
    "blame",
    "Experts left out",
    BlameRequest,
    plan,
    reduced=merge_alone,
    work=work,
    needs="merge",
    opens=of_worst_task(500),
)
