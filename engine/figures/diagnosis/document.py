"""A diagnosis as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape

from ...report import Report
from ...zoo.nouns import called, kind_of_zoo
from ..document import figure_html, page_html, provenance_html
from ..palette import Theme
from .answer import Answer, Scope


def diagnosis_document(report: Report, run: str, scope: Scope, answers: Mapping[Theme, Sequence[Answer]]) -> str:
    """Render the answers to why a task loses as one self-contained HTML document.

    Args:
        report: of the run.
        run: its name.
        scope: the images that it is about.
        answers: for a light and a dark page.
    """
    said = partial(called, kind=kind_of_zoo(report.recipe.zoo))
    name = said(f"What happens to {scope.words}?")
    parts = [f"<h1>{escape(name)}</h1><p class=quiet>{escape(said(_subtitle(report, run, scope)))}</p>"]
    place = 0
    for light, dark in zip(answers["light"], answers["dark"], strict=True):
        parts.append(f"<h2>{light.number}. {escape(said(light.question))}</h2><p>{escape(said(light.sentence))}</p>")
        parts += [f"<p>{escape(said(note))}</p>" for note in light.notes]
        for (one, below), (two, _) in zip(light.captioned, dark.captioned, strict=True):
            caption = f"{below.unit}; n = {below.count}"
            parts.append(figure_html(place, "", caption, {"light": one, "dark": two}, said))
            place += 1
        parts.append(f"<p class=quiet>{escape(said(light.control))}</p>")
    parts += [f"<h2>Recipe</h2><pre>{escape(report.recipe.to_yaml())}</pre>", provenance_html(report)]
    return page_html(name, parts, figures=place > 0)


def _subtitle(report: Report, run: str, scope: Scope) -> str:
    words = [f"Task {scope.title}", f"run {run}", f"zoo {report.zoo.title or report.zoo.name}"]
    if scope.images:
        words.append("images " + ", ".join(map(str, scope.images)))
    return "; ".join(words) + "."
