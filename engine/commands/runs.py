"""Commands on the run table and on what runs left behind."""

from __future__ import annotations

import csv
import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

from ..analysis.bias import MEASURES
from ..catalog.words import choice_title
from ..errors import EngineError, StoreError, nearest
from ..outgoing import csv_cell, latex
from ..report import Report, read_report
from ..rounding import rounded
from ..store import Run, Store, collect
from ..store.outputs import new_file
from ..zoo.nouns import kind_of_zoo
from .inputs import files_of_zoo
from .printing import say, say_line
from .work import Force

app = typer.Typer(no_args_is_help=True, help="List, inspect, cancel, resume and delete runs.")
RunId = Annotated[str, typer.Argument(help="The id of a run, as `runs list` prints it.")]


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 20,
    search: Annotated[str, typer.Option(help="Only with these words in name, notes, tags or recipe.")] = "",
    parent: Annotated[str | None, typer.Option(help="Only what belongs to this run, e.g. the runs of a sweep.")] = None,
) -> None:
    """List runs, newest first; those that belong to another one are listed with it."""
    runs = Store().runs
    if parent is not None:
        runs.get(parent)
    rows = runs.list(limit=limit, search=search, parent=parent, children=parent is not None)
    for row in rows:
        facts = f"{row.id}  {row.state:<10} {100 * row.fraction:3.0f} %  {row.elapsed:6.1f} s  {row.kind}"
        say_line(f"{facts}: {row.name}")
    if not rows:
        say("No run is found." if search or parent is not None else "The store holds no runs yet.")


@app.command()
def show(run: RunId) -> None:
    """Show one run: its state, its numbers, its log."""
    from .work import summary

    store = Store()
    row = store.runs.get(run)
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.created))
    say_line(f"{row.id}  {row.state}  {row.name}  (asked for {created}, {row.elapsed:.1f} s)")
    if row.deleted:
        say_line(f"Deleted; `runs delete --undo {row.id}` brings it back.")
    if row.error:
        say_line(f"Reason: {row.error}")
    if row.state == "finished" and row.kind == "run":
        say(summary(_report(store, row)))
    for line in store.runs.logs.read(row.id):
        say_line(f"  {line.line}")


@app.command()
def cancel(run: RunId) -> None:
    """Ask a run to stop."""
    say(f"{run} is {Store().runs.request_cancel(run).state}.")


@app.command()
def resume(run: RunId) -> None:
    """Queue a cancelled or failed run again; its finished steps are kept."""
    store = Store()
    say(f"{run} is {store.runs.resume(run).state}.")
    status = store.lease.status()
    if status is None or not status.alive:
        say("No engine is running; `serve --detach` starts one, which carries it out.")


@app.command()
def delete(
    run: RunId, undo: Annotated[bool, typer.Option("--undo", help="Bring a deleted run back instead.")] = False
) -> None:
    """Delete a run; until garbage collection it can be brought back."""
    runs = Store().runs
    if undo:
        if not runs.get(run).deleted:
            raise StoreError(f"The run '{run}' is not deleted.")
        say(f"{runs.undelete(run).id} is back.")
        return
    runs.delete(run)
    say(f"{run} is deleted; `runs delete --undo {run}` brings it back.")


@app.command()
def gc(
    days: Annotated[
        float,
        typer.Option(min=0, help="Forget runs deleted, and checkpoints of trainings stopped, longer ago than this."),
    ] = 7.0,
    dry: Annotated[bool, typer.Option("--dry", help="Only say what would be freed.")] = False,
) -> None:
    """Remove artefacts that no run refers to, leftovers and old thumbnails; those of the last hour stay."""
    say(str(collect(Store(), days=days, dry=dry)))


def export(
    run: Annotated[str, typer.Argument(help="The id of a finished run, or the folder of one.")],
    to: Annotated[
        Path,
        typer.Option(
            help="metrics.csv, table.tex, report.html, report.json, recipe.yaml, merged.safetensors, images.parquet "
            "(for embedding-atlas), or with --format a folder."
        ),
    ],
    layout: Annotated[
        str, typer.Option("--format", help="hf, open_clip, peft or mlflow (folders), mergekit (YAML).")
    ] = "",
    task: Annotated[str | None, typer.Option(help="The task, where a merge makes weights for each.")] = None,
    rank: Annotated[
        int | None, typer.Option(min=1, help="Rank of an adapter; default: what keeps 99 % of a layer's energy.")
    ] = None,
    force: Force = False,
) -> None:
    """Write one part of what a run left behind to a file, or its model as a folder with card and provenance."""
    folder = Path(run) if Path(run).is_dir() else folder_of(Store(), Store().runs.get(run))
    if layout == "mlflow":
        say(f"Added the run {_export_mlflow(run, folder, to)} to MLflow's file store.")
    elif layout and layout != "mergekit":
        _export_model(folder, to, layout, task, rank)
    elif task is not None or rank is not None:
        option = "--task" if task is not None else "--rank"
        raise EngineError(f"{option} is for a model's folder (--format hf, open_clip or peft); leave it out.")
    else:
        inputs = [path for path in folder.rglob("*") if path.is_file()]
        inputs += files_of_zoo(read_report(folder).recipe.zoo) if (folder / "report.json").is_file() else []
        with new_file(to, inputs, force=force) as file:
            _mergekit(folder, file) if layout else _export_part(folder, file)
        if to.suffix == ".safetensors":
            _write_receipt(folder, to, inputs, force)
    say(f"Wrote {to}.")


def _write_receipt(folder: Path, merged: Path, inputs: list[Path], force: bool) -> None:
    """Write the receipt of a run's merge beside its exported weights, where the zoo is still there."""
    from ..pipeline.export.model import run_receipt
    from ..pipeline.run.receipt import beside

    text = run_receipt(folder, Store().digest_file)
    if text is not None:
        with new_file(beside(merged), inputs, force=force) as file:
            file.write_text(text, "utf-8")
        say(f"Wrote {beside(merged)}, which says what came from which expert.")


def _export_part(folder: Path, to: Path) -> None:
    """Write the part of a run that a file's ending asks for."""
    if to.suffix == ".csv":
        _metrics(read_report(folder), to)
    elif to.suffix == ".tex":
        to.write_text(_latex(read_report(folder)), "utf-8")
    elif to.suffix == ".parquet":
        from ..pipeline.export.atlas import write_atlas

        say(f"{write_atlas(folder, to)} images.")
    elif to.suffix == ".html":
        from ..figures import html_document

        to.write_text(html_document(folder), "utf-8")
    else:
        names = {".json": "report.json", ".yaml": "recipe.yaml", ".safetensors": "merged.safetensors"}
        source = folder / names.get(to.suffix, to.name)
        if to.suffix == ".safetensors" and (folder / "merged" / "merged.json").is_file():
            raise EngineError(
                "This merge's weights depend on the task or the image, so one file cannot hold them. Use the run's "
                "folder 'merged' with mergelens.load_merged, or --format with --task for one of its tasks."
            )
        if to.suffix not in names or not source.is_file():
            raise EngineError(
                f"The run has nothing to write to a file of this kind ({to.suffix or 'no ending'}): give .csv, .tex, "
                ".html, .json, .parquet, .yaml or .safetensors."
            )
        if to.suffix == ".safetensors":
            from ..pipeline.export.model import export_file

            export_file(folder, to, Store().digest_file)
        else:
            shutil.copyfile(source, to)


def _export_mlflow(run: str, folder: Path, to: Path) -> str:
    from ..catalog.titles import recipe_title
    from ..pipeline.export.mlflow import write_mlflow

    if Path(run).is_dir():
        made = (folder / "report.json").stat().st_mtime if (folder / "report.json").is_file() else time.time()
        name, created, seconds = recipe_title(read_report(folder).recipe), made, 0.0
    else:
        row = Store().runs.get(run)
        name, created, seconds = row.name, row.created, row.elapsed
    return write_mlflow(folder, to, created=created, seconds=seconds, name=name)


def _mergekit(folder: Path, to: Path) -> None:
    from ..pipeline.foreign.mergekit import model_paths, write_mergekit
    from ..pipeline.foreign.mergekit_read import remarks

    recipe = read_report(folder).recipe
    to.write_text(write_mergekit(recipe, *model_paths(recipe)), "utf-8")
    for remark in remarks(recipe):
        say(remark)


def _export_model(folder: Path, to: Path, layout: str, task: str | None, rank: int | None) -> None:
    from ..pipeline.export.model import LAYOUTS, export_model

    if layout not in LAYOUTS:
        raise EngineError(f"There is no format '{layout}'. {nearest(layout, [*LAYOUTS, 'mergekit', 'mlflow'])}")
    export_model(folder, to, layout, Store().digest_file, task=task, rank=rank)


def _report(store: Store, row: Run) -> Report:
    return read_report(folder_of(store, row))


def folder_of(store: Store, row: Run) -> Path:
    """Return the folder that a finished run left.

    Raises:
        StoreError: it is not finished, or its results are gone.
    """
    if row.state != "finished":
        raise StoreError(f"Run {row.id} is {row.state}; only a finished run left results.")
    found = store.find(row.result)
    if found is None:
        raise StoreError(f"The results of run {row.id} are no longer in the store. Run its recipe again.")
    return found


def _metrics(report: Report, to: Path) -> None:
    """Write one row per state and task: accuracy in percent and every bias."""
    with to.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["state", "task", "domain", "n", "accuracy", "accuracy_sd", *MEASURES])
        for state in report.states():
            for task, value in report.accuracy[state].items():
                bias = report.bias.get(state)
                parts = [getattr(bias, name).get(task) if bias else None for name in MEASURES]
                sd = report.accuracy_sd.get(state, {}).get(task)
                domain, count = report.tasks[task].domain, report.samples[task].evaluate
                table.writerow(map(csv_cell, [state, task, domain, count, value, sd, *parts]))


def _latex(report: Report) -> str:
    """Return a table of accuracies in percent, one row per state, with what it was measured on in its caption."""
    counts = sorted({samples.evaluate for samples in report.samples.values()})
    if not counts:
        raise EngineError(
            f"Nothing was scored in this run of zoo {report.zoo.name}, so there is no table of accuracies. Export its "
            "weights (merged.safetensors) or its report (report.json)."
        )
    tasks = list(report.tasks)
    lines = [
        r"\begin{table}\centering",
        rf"\begin{{tabular}}{{l{'r' * (len(tasks) + 2)}}}",
        r"\hline",
        " & ".join(["", *(latex(report.tasks[task].title) for task in tasks), "in", "out"]) + r" \\",
        r"\hline",
    ]
    for state in report.states():
        row, average = report.accuracy[state], report.average[state]
        cells = [row.get(task) for task in tasks] + [average.within, average.out]
        texts = ["--" if value is None else rounded(value) for value in cells]
        lines.append(" & ".join([latex(state.replace("_", " ")), *texts]) + r" \\")
    many = kind_of_zoo(report.recipe.zoo).many
    caption = (
        f"Accuracy (percent) on {counts[0]}--{counts[-1]} evaluation {many} a task of zoo {report.zoo.name}, "
        f"protocol {choice_title(report.protocol)}, split seed {report.split_seed}, "
        f"training seeds {', '.join(map(str, report.seeds))}."
    )
    return "\n".join([*lines, r"\hline", r"\end{tabular}", rf"\caption{{{latex(caption)}}}", r"\end{table}", ""])
