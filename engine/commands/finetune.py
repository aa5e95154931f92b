"""Commands that make experts: a new zoo from a base and samples, and the training itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..catalog import FINE_TUNING
from ..errors import EngineError
from ..manifest import STANDARD, read_manifest
from ..rounding import rounded
from .importing import Architecture, HeadWidth, Preprocessing, QuickGelu, Templates
from .merge import params_from
from .printing import progress_line, say
from .work import Quiet, Service, carrier


def init(
    folder: Annotated[Path, typer.Argument(help="A folder of weights to describe; with --base, the new zoo.")],
    base: Annotated[
        str | None, typer.Option(help="Start a new zoo from this zoo's base: a bundled zoo's name, or a path.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="With --base: samples of one task or a folder of several. Images: class folders, .zip, parquet, .csv, "
            ".npz, or torchvision:NAME,NAME. Texts: .jsonl, .csv, .tsv, parquet, or a folder with one for each split. "
            "Class names in NAME.json where the data bring none."
        ),
    ] = None,
    heads: Annotated[
        str,
        typer.Option(
            help="With --base: text (zero-shot), prototypes (class means) or probe (linear classifier); default: text "
            "for images, prototypes for texts."
        ),
    ] = "",
    templates: Templates = "",
    outside: Annotated[
        list[str] | None, typer.Option(help="With --base: a task that is out of domain and gets no expert.")
    ] = None,
    test_share: Annotated[
        float | None,
        typer.Option(help="Of samples without splits: the share of every class that is tested on (say 0.2)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the choice that --test-share makes.")] = 0,
    skip_corrupt: Annotated[
        bool,
        typer.Option(
            "--skip-corrupt",
            help="Leave out images that cannot be decoded and texts without a word; they are counted and named.",
        ),
    ] = False,
    link: Annotated[
        bool, typer.Option("--link", help="Hard links in place of copies; the files must not be changed afterwards.")
    ] = False,
    architecture: Architecture = "",
    quick_gelu: QuickGelu = None,
    head_width: HeadWidth = None,
    preprocess: Preprocessing = "",
) -> None:
    """Write a first zoo.yaml for a folder of weights, or start a new zoo from a base and samples.

    A folder's architecture, activation and preprocessing are read, given with the last four options, decided by images
    and heads in it, or refused.
    """
    if base is None and data is None:
        from ..zoo.importing.draft import draft_manifest

        given = {"architecture": architecture, "quick_gelu": quick_gelu, "head_width": head_width}
        path = draft_manifest(folder, {**given, "preprocess": preprocess, "templates": templates})
        if templates and (found := read_manifest(folder).backbone.origins.get("templates")):
            say(f"Templates: {found}")
        say(f"Wrote {path}. Complete it, then check it with `zoo check {folder}`.")
        return
    if base is None or data is None:
        raise EngineError("A new zoo needs both --base and --data.")
    from ..pipeline.zoos.new import NewZooOptions, new_zoo
    from ..store import Store

    wish = NewZooOptions(heads, tuple(outside or ()), test_share, seed, skip_corrupt, link, templates)
    for line in new_zoo(folder, base, data, wish, say=say):
        say(line)
    Store().zoos.add(folder)  # so that pages list it
    say(f"Wrote {folder}. Train its experts with `zoo finetune {folder}`.")


def finetune(
    zoo: Annotated[
        str, typer.Argument(help="A zoo folder whose tasks have training samples: a split train with labels.")
    ],
    task: Annotated[
        list[str] | None, typer.Option(help="Only this task; again for more. Default: all without an expert.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"Recipe: {', '.join(FINE_TUNING)}.")] = STANDARD,
    joint: Annotated[
        bool, typer.Option("--joint", help="One model on all tasks together: the zoo's reference `multitask`.")
    ] = False,
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter of the recipe, such as rank=8; again for more.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Batches to train on (default 250).")] = None,
    epochs: Annotated[float | None, typer.Option(help="In place of --steps: passes over the samples.")] = None,
    batch_size: Annotated[int, typer.Option(help="Samples in a step.")] = 64,
    learning_rate: Annotated[
        float | None, typer.Option(help="Highest rate; default 5e-4 below 20 million parameters, else 1e-5.")
    ] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps of linear warm-up (default a tenth of all).")] = None,
    decay: Annotated[str, typer.Option(help="The cosine spans all steps (whole), or those after_warmup.")] = "whole",
    weight_decay: Annotated[float, typer.Option(help="AdamW's decoupled weight decay.")] = 0.0,
    label_smoothing: Annotated[float, typer.Option(help="Share of the target spread over all classes.")] = 0.0,
    augmentation: Annotated[
        str | None,
        typer.Option(help="Of images: shift (default), none, crop, shift_flip or crop_flip. Texts stay as they are."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Orders the batches and draws the augmentations.")] = 0,
    dtype: Annotated[str, typer.Option(help="How the experts are stored: float32 or float16.")] = "float32",
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints (default: every 30 seconds).")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Also train tasks that have an expert already.")] = False,
    called: Annotated[
        str, typer.Option(help="A name for this way of training, where the recipe has experts with other settings.")
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from", help="Start from the base of this zoo, of the same architecture; `zoo align` then makes them fit."
        ),
    ] = "",
    service: Service = False,
    quiet: Quiet = False,
) -> None:
    """Train experts from a zoo's base on its tasks' training images or texts and put them into the zoo.

    AdamW on what the recipe trains, the head frozen, linear warm-up and a cosine to zero; the last iterate is kept. A
    task may have an expert by each recipe; those by others than the standard one are called TASK-RECIPE.
    With --from experts start from another zoo's base and are trained with this zoo's heads; they are called
    TASK-other_base, name that base in zoo.yaml, and can be merged once `zoo align` has ordered their units.
    With --joint one model learns all tasks together and becomes the zoo's reference `multitask`, which runs show; with
    --method kd4mtl it imitates the experts' features meanwhile, and is the reference `kd4mtl`.
    Stopped in the middle, the same command goes on from the last checkpoint and ends with the same expert.
    """
    from ..pipeline.local import finetune_experts
    from ..store import Store
    from ..zoo.folder import Zoo

    joined = [name for name, row in FINE_TUNING.items() if row.joint]
    if joint and method not in (STANDARD, *joined):
        raise EngineError(f"--joint goes with --method {' or '.join(joined)}; leave it or --method {method} out.")
    config = {
        "steps": steps,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "label_smoothing": label_smoothing,
        "augmentation": augmentation,
        "seed": seed,
        "dtype": dtype,
        "method": "joint" if joint and method == STANDARD else method,
        "params": params_from(param or []),
        "decay": decay,
    }
    request = {"zoo": zoo, "config": config, "replace": replace, "checkpoint_every": checkpoint_every, "called": called}
    if task:
        request["tasks"] = task
    if start:
        request["start"] = {"zoo": start}
    told = None if quiet else progress_line()
    records = finetune_experts(request, Store(), progress=told, carry=carrier(service))
    many = Zoo.open(zoo).modality.many
    for name, record in records.items():
        accuracy, samples = record["validation_accuracy"], record["images"]
        say(
            f"{name}: {rounded(accuracy['base'])} % → {rounded(accuracy['expert'])} % on {samples['validation']} "
            f"validation {many}, {record['config']['steps']} steps on {samples['train']} {many}, "
            f"{record['seconds']:.0f} s"
        )
    say(f"The experts are in {zoo}; how they were trained is in its build.json.")


def distill(
    zoo: Annotated[str, typer.Argument(help="The student's zoo folder.")],
    teacher: Annotated[str, typer.Option(help="A model of another zoo as ZOO:MODEL; its architecture may differ.")],
    task: Annotated[list[str], typer.Option(help="The task to teach; again for more.")],
    teacher_task: Annotated[str, typer.Option(help="Whose head the teacher uses, where it is called otherwise.")] = "",
    temperature: Annotated[float, typer.Option(help="Softens both predictions.")] = 2.0,
    weight: Annotated[float, typer.Option(help="Of the teacher; 0 trains on labels only, as a control.")] = 0.9,
    method: Annotated[str, typer.Option(help=f"Recipe: {', '.join(FINE_TUNING)}.")] = STANDARD,
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter of the recipe, such as rank=8; again for more.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Batches to train on (default 250).")] = None,
    batch_size: Annotated[int, typer.Option(help="Samples in a step.")] = 64,
    learning_rate: Annotated[float | None, typer.Option(help="Highest rate; default as in `zoo finetune`.")] = None,
    seed: Annotated[int, typer.Option(help="Orders the batches and draws the augmentations.")] = 0,
    replace: Annotated[bool, typer.Option("--replace", help="Also where there is a distilled expert already.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train experts from a zoo's base to predict like a teacher, whatever its architecture.

    The student matches the teacher's softened predictions on the training samples, and their labels. It becomes an
    ordinary expert called TASK-distilled. A teacher of texts reads them with its own vocabulary.
    """
    from ..pipeline.local import finetune_experts
    from ..store import Store
    from ..zoo.folder import Zoo

    place, separator, model = teacher.rpartition(":")
    if not separator:
        raise EngineError(f"The teacher '{teacher}' names no model; write it as ZOO:MODEL, such as mini8:digits.")
    config = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "seed": seed}
    config |= {"method": method, "params": params_from(param or [])}
    learned = {"zoo": place, "model": model, "task": teacher_task, "temperature": temperature, "weight": weight}
    request = {"zoo": zoo, "tasks": task, "config": config, "teacher": learned, "replace": replace}
    records = finetune_experts(request, Store(), progress=None if quiet else progress_line())
    many = Zoo.open(zoo).modality.many
    for name, record in records.items():
        accuracy = record["validation_accuracy"]
        say(
            f"{name}: {rounded(accuracy['base'])} % → {rounded(accuracy['expert'])} % on validation {many}; the "
            f"teacher is right on {rounded(record['images']['teacher'])} % of the {record['images']['train']} "
            f"training {many}"
        )
