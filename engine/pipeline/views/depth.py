"""The step that follows a run's states through the blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...analysis.depth import bias_by_block
from ...calibration.stations import block_outputs
from ...calibration.stitching import Network
from ...zoo.folder import Zoo
from .models import Models, images_of

if TYPE_CHECKING:
    from ..steps import StepTools


def depth(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Compare every state's block outputs with the expert's on one task; writes ``depth.json``.

    Images go through in batches, and of one model beside the expert a vector an image, block and statistic is kept.
    """
    zoo, task = Zoo.of(params["sources"]), params["task"]
    images = images_of(zoo, task, params["probe"], params["images"])
    models = Models(zoo, inputs, task, images.device)
    networks = {"expert": lambda: Network(models.encoder(params["expert"]))} | models.networks(params["calibrators"])
    expert, states = {}, {}
    for number, (state, load) in enumerate(networks.items()):
        report, network = tools.part(number / len(networks), (number + 1) / len(networks)), load()
        batches = images.batches(lambda fraction, report=report, state=state: report(fraction, f"{task}, {state}"))
        outputs = block_outputs(network.encoder, batches, network.calibrator, task)
        arrays = {name: tensor.numpy() for name, tensor in outputs.items()}
        if state == "expert":
            expert = arrays
        else:
            states[state] = bias_by_block(arrays, expert)
    document = {
        "states": states,
        "images": len(images.rows),
        "available": images.available,
        "blocks": len(expert["class"]),
    }
    (output / "depth.json").write_text(json.dumps(document))
