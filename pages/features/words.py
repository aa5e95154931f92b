"""Texts with the words marked that move features most, once words have been hidden."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.figures.occlusion import most_moving
from engine.pipeline.views.occlusion import OCCLUSION
from pages.shared.chrome import plain
from pages.shared.on_demand import view_at_hand
from pages.shared.state import RunView

IMAGES = 300  # texts of a task, at most


def occlusion_folder(run: RunView, task: str) -> Path | None:
    """Return where the view on a task lies, where it is there already."""
    return view_at_hand(run, OCCLUSION, OCCLUSION.ask(run.report.recipe, task=task, images=IMAGES))


def marked(text: Mapping[str, Any]) -> str:
    """Return a text with the expert's most moving words in green, the merged model's in orange, shared ones in bold."""
    expert, merged = most_moving(text, "expert"), most_moving(text, "merged")
    words = []
    for place, word in enumerate(text["words"]):
        said = plain(word)
        if place in expert and place in merged:
            said = f"**:violet-background[{said}]**"
        elif place in expert:
            said = f":green-background[{said}]"
        elif place in merged:
            said = f":orange-background[{said}]"
        words.append(said)
    return " ".join(words)
