"""A run as one HTML file that needs nothing else: numbers, figures, recipe, provenance; for mail, archives, papers.

The file carries Plotly's code once and every figure as data for a light and a dark page. Its content security policy
forbids it to load anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path

import pandas as pd
from plotly.offline import get_plotlyjs

from ..catalog.titles import method_title
from ..report import Report, read_report
from ..zoo.nouns import called, kind_of_zoo
from .accuracy import accuracy_bars, scored_states
from .bias import MEASURES, bias_bars, bias_states
from .curves import QUANTITIES, training_curves
from .drawing import Drawing, number, reworded
from .palette import GRID, INK, MUTED, SURFACE, Theme, state_title
from .salience import salience_heatmap

Wording = Callable[[str], str]
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
PAGE = {"light": "#FFFFFF", "dark": "#14171A"}
PROTOCOLS = {
    "held_out": "held-out: calibrators adapt on images that are not scored",
    "paper": "paper: calibrators adapt on the scored images, without their labels",
}
STYLE = """
:root{color-scheme:light dark;%s}
@media (prefers-color-scheme:dark){:root{%s}}
body{margin:0;background:var(--page);color:var(--ink);
 font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-variant-numeric:tabular-nums}
main{max-width:60rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.75rem;line-height:1.25;font-weight:550;margin:0 0 .25rem;text-wrap:balance;overflow-wrap:anywhere}
h2{font-size:1.2rem;font-weight:600;margin:2.75rem 0 .5rem}
p{max-width:44rem;margin:.5rem 0}.quiet,figcaption,summary{color:var(--muted);font-size:.9rem}
.warning{border-left:3px solid #D55E00;padding:.1rem 0 .1rem .9rem}
dl.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:1rem;margin:1.75rem 0 0}
dl.numbers div{border:1px solid var(--line);border-radius:.5rem;padding:.7rem 1rem}
dl.numbers dt{color:var(--muted);font-size:.9rem}dl.numbers dd{margin:0;font-size:1.6rem}
figure{margin:.5rem 0 0}details{margin:.5rem 0}summary{cursor:pointer}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;margin:.5rem 0}
th,td{text-align:right;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600;color:var(--muted)}th:first-child,td:first-child{text-align:left}
table.facts td{white-space:normal;text-align:left;overflow-wrap:anywhere}table.facts td:first-child{color:var(--muted);
 min-width:9rem}
pre{background:var(--surface);border:1px solid var(--line);border-radius:.5rem;padding:1rem;overflow-x:auto;
 font-size:.85rem}
@media print{details{display:none}figure,pre{break-inside:avoid}}
"""
SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const png = {name: "png", title: "Download plot as a png", icon: Plotly.Icons.disk,
  click: (plot) => Plotly.downloadImage(plot, {format: "png", scale: 3})};
const config = {displaylogo: false, responsive: true, toImageButtonOptions: {format: "svg"},
  modeBarButtonsToAdd: [png]};
function draw() {
  for (const plot of document.querySelectorAll(".plot")) {
    const made = JSON.parse(document.getElementById(plot.dataset.figure).textContent)[dark.matches ? "dark" : "light"];
    Plotly.react(plot, made.data, made.layout, config);
  }
}
dark.addEventListener("change", draw);
draw();
"""


def html_document(folder: Path, title: str = "") -> str:
    """Render a finished run as one self-contained HTML document.

    Args:
        folder: what the run left behind.
        title: what the run is called; default its methods and zoo.

    Raises:
        StoreError: the folder holds no report.
    """
    report = read_report(folder)
    name = escape(title or _title(report))
    drawn, said = _figures(report), partial(called, kind=kind_of_zoo(report.recipe.zoo))
    parts = [
        f"<h1>{name}</h1><p class=quiet>{escape(_subtitle(report))}</p>",
        *(f"<p class=warning>{escape(warning)}</p>" for warning in report.warnings),
        _numbers(report),
        _averages(report),
        *(figure_html(place, *drawing, said=said) for place, drawing in enumerate(drawn)),
        f"<h2>Recipe</h2><pre>{escape(report.recipe.to_yaml())}</pre>",
        provenance_html(report),
    ]
    return page_html(title or _title(report), parts, figures=bool(drawn))


def page_html(title: str, parts: Sequence[str], *, figures: bool) -> str:
    """Return parts as one HTML page that may load nothing.

    Args:
        title: of the page, as plain text.
        parts: HTML.
        figures: whether any part was made by :func:`figure_html`, so that Plotly is needed.
    """
    colours = (
        f"--page:{PAGE[t]};--ink:{INK[t]};--muted:{MUTED[t]};--line:{GRID[t]};--surface:{SURFACE[t]}"
        for t in ("light", "dark")
    )
    scripts = [f"<script>{get_plotlyjs()}</script>", f"<script>{SCRIPT}</script>"] if figures else []
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE % tuple(colours)}</style></head><body><main>",
            *parts,
            "</main>",
            *scripts,
            "</body></html>",
            "",
        ]
    )


def _title(report: Report) -> str:
    recipe = report.recipe
    names = [method_title(call.method) for call in (*recipe.transforms, recipe.merge)]
    return ", ".join([*names, *(state_title(name, report) for name in report.calibrators)])


def _subtitle(report: Report) -> str:
    inside, outside = len(report.tasks_of("in")), len(report.tasks_of("out"))
    tasks = f"{inside} in-domain" + (f" and {outside} out-of-domain" if outside else "")
    zoo = report.zoo.title or report.zoo.name
    return f"{zoo}; {len(report.experts)} experts, {tasks} tasks; {report.protocol.replace('_', '-')} protocol."


def _numbers(report: Report) -> str:
    """Return the in-domain accuracy of every state as large numbers."""
    shown = [(state, report.average[state].within) for state in scored_states(report) if state in report.average]
    cells = [
        f"<div><dt>{escape(state_title(state, report))}</dt><dd>{number(value)} %</dd></div>"
        for state, value in shown
        if value is not None
    ]
    note = "<p class=quiet>Mean accuracy over in-domain tasks, every task counts the same.</p>"
    return f"<dl class=numbers>{''.join(cells)}</dl>{note}" if cells else "<p>The run has no accuracies.</p>"


def _averages(report: Report) -> str:
    """Return every state's averages, with its distance to the experts."""
    rows = []
    for state in scored_states(report):
        average = report.average.get(state)
        known = report.bias[state].l1 if state in bias_states(report) else {}
        l1 = [known[task] for task in report.tasks_of("in") if known.get(task) is not None]
        rows.append(
            {
                "State": state_title(state, report),
                "In-domain (%)": number(average.within if average else None),
                "Out-of-domain (%)": number(average.out if average else None),
                "H (%)": number(average.h_score if average else None),
                "Gap closed (%)": number(average.recovered if average else None),
                "L1 bias": number(sum(l1) / len(l1) if l1 else None, 3),
            }
        )
    if not rows:
        return ""
    note = (
        "H is the harmonic mean of in- and out-of-domain accuracy. Gap closed: how much of the way from merged to "
        "experts is regained. L1 bias: mean distance of features to the expert's over in-domain tasks, in feature "
        "units."
    )
    return f"<h2>Averages</h2>{_table(pd.DataFrame(rows))}<p class=quiet>{note}</p>"


def _figures(report: Report) -> list[tuple[str, str, dict[Theme, Drawing]]]:
    """Return heading, caption and drawings of every figure that the run has numbers for."""
    parts = []
    if report.accuracy:
        parts.append(
            (
                "Accuracy per task",
                "Accuracy in percent, lines are 95 % Wilson intervals",
                lambda theme: accuracy_bars(report, theme),
            )
        )
    if bias_states(report):
        parts.append(
            (
                "Distance to the experts",
                f"L1: {MEASURES['l1'].explanation}, {MEASURES['l1'].closer}",
                lambda theme: bias_bars(report, "l1", theme),
            )
        )
    if part := report.salience:
        parts.append(
            (
                "Salience of layers",
                "Mean |τ − mean τ| over a layer's parameters, for every expert",
                lambda theme: salience_heatmap(part, theme),
            )
        )
    if any(calibrator.curve for calibrator in report.calibrators.values()):
        parts.append(
            (
                "How the calibrators learned",
                f"{QUANTITIES['accuracy'].axis}, by training step, first seed",
                lambda theme: training_curves(report, "accuracy", theme),
            )
        )
    return [(title, caption, {theme: draw(theme) for theme in ("light", "dark")}) for title, caption, draw in parts]


def figure_html(place: int, title: str, caption: str, drawn: Mapping[Theme, Drawing], said: Wording) -> str:
    """Return a figure with its heading, its caption and, folded, the table behind it.

    Args:
        place: its number in the page.
        title: heading; '' for none.
        caption: below the figure, without its full stop.
        drawn: the figure for a light and a dark page; said of images, changed in place.
        said: gives a text about images as one about the samples of the figure.
    """
    for drawing in drawn.values():
        reworded(drawing.figure, said)
    both = json.dumps({theme: json.loads(drawing.figure.to_json()) for theme, drawing in drawn.items()})
    safe = both.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    table, alt = drawn["light"].table, escape(said(drawn["light"].alt), quote=True)
    heading, below = f"<h2>{escape(said(title))}</h2>" if title else "", escape(said(caption))
    return (
        f"{heading}<figure>"
        f'<div class=plot role=img aria-label="{alt}" data-figure="figure-{place}"></div>'
        f"<figcaption>{below}.</figcaption></figure><details><summary>Table</summary>{_table(table)}</details>"
        f'<script type="application/json" id="figure-{place}">{safe}</script>'
    )


def provenance_html(report: Report) -> str:
    """Return the facts of the measurement: zoo, samples, versions and time."""
    kind = kind_of_zoo(report.recipe.zoo)
    facts = {
        "Zoo": f"{report.zoo.title or report.zoo.name} ({report.zoo.name})",
        "Zoo digest": report.zoo.digest,
        "Run identity": report.identity,
        "Experts": ", ".join(report.experts),
        "Protocol": called(PROTOCOLS[report.protocol], kind),
        "Split seed": str(report.split_seed),
        "Training seeds": ", ".join(map(str, report.seeds)),
        "Merged model": f"{report.merged.kind.replace('_', ' ')}, {report.merged.extra_parameters:,} extra parameters, "
        f"{report.merged.extra_bits:,} extra bits, the task "
        f"{'must' if report.merged.needs_task_id else 'need not'} be known at inference",
        **{
            f"{state_title(name, report)}": f"{part.parameters:,} parameters, on {part.on}"
            for name, part in report.calibrators.items()
        },
        "Seconds": ", ".join(f"{name} {seconds:.1f}" for name, seconds in report.timing_s.items()) or "not kept",
        **report.environment,
    }
    samples = pd.DataFrame(
        [
            {
                "Task": report.tasks[task].title or task,
                "Domain": report.tasks[task].domain,
                "Scored": counts.evaluate,
                "Of": counts.available,
                "Adapted on": counts.adapt,
                "Validation": counts.validation,
            }
            for task, counts in report.samples.items()
            if task in report.tasks
        ]
    )
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts.items())
    note = "Seconds are of when a part was computed, which may have been for an earlier run."
    counted = f"<h2>{kind.many.capitalize()}</h2>{_table(samples)}" if len(samples) else ""
    return f"{counted}<h2>Provenance</h2><table class=facts>{rows}</table><p class=quiet>{note}</p>"


def _table(frame: pd.DataFrame) -> str:
    """Return a table as HTML, every cell and heading escaped."""
    return f"<div class=wide>{frame.to_html(index=False, border=0, na_rep='–', float_format=_short)}</div>"


def _short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
