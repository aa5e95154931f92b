"""Findings against a recipe on a zoo: the one place that forms, checks before a run, plans and commands read.

Free of torch at import, so that a form can ask at every change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from ...catalog import (
    CALIBRATORS,
    MERGE_METHODS,
    TRANSFORMS,
    MergeRow,
    Params,
    TransformRow,
    check_experts,
    check_transforms,
    params_of,
    resolve_call,
)
from ...errors import DataError, EngineError, RecipeError, nearest
from ...manifest import Manifest
from ...recipe import CalibratorCall, Recipe
from ...types import Finding
from ...zoo.encoders.architecture import architecture, tower_size
from ...zoo.folder import Zoo, choose_experts, compared_with, several_of_a_task
from ...zoo.modalities import modality_of
from . import linearised

EACH = {"per_task": "task", "per_sample": "image"}
FLATTERING = "The paper protocol adapts on the images that are scored (without labels), which flatters."


def findings(recipe: Recipe, zoo: Zoo | Manifest) -> list[Finding]:
    """List everything that speaks against a recipe on a zoo; an error is something that no run can be made of.

    Args:
        recipe: what is asked for, with or without its defaults.
        zoo: the zoo that it names, or its manifest alone. Of a manifest is assumed that its tasks have labelled
            validation images, that heads can be built where it names none, and that calibrators fit into its encoder.

    Returns:
        Errors, then warnings.
    """
    errors = _invalid_methods(recipe)
    if not errors:
        errors = [*_refused_experts(recipe, zoo), *_refused_calibrators(recipe, _manifest(zoo)), *_lacking(recipe, zoo)]
        errors += [*linearised.refused(recipe, _manifest(zoo)), *_misfits(recipe, zoo)]
        errors += [*_unaligned(recipe, _manifest(zoo)), *_without_one_model(recipe)]
        errors += _errors_of(check_transforms, recipe.transforms, recipe.merge)
        errors += _several_of_a_task(recipe, _manifest(zoo), refused=True)
    found = [Finding("error", text) for text in dict.fromkeys(errors)]
    if not errors:
        doubts = [*_several_of_a_task(recipe, _manifest(zoo)), *linearised.doubtful(recipe, _manifest(zoo))]
        found += [Finding("warning", text) for text in doubts]
    return [*found, Finding("warning", FLATTERING)] if recipe.probe.protocol == "paper" else found


def _without_one_model(recipe: Recipe) -> Iterator[str]:
    """List transforms that change the one merged model, where the merge makes several."""
    merge = MERGE_METHODS[recipe.merge.method]
    for row in (TRANSFORMS[call.method] for call in recipe.transforms):
        if merge.yields in EACH and row.stage == "merged_vector":
            yield (
                f"{row.title} changes one merged model, but {merge.title} makes one for each {EACH[merge.yields]}. "
                f"Take {row.title} out, or choose another merge method."
            )


def _several_of_a_task(recipe: Recipe, manifest: Manifest, *, refused: bool = False) -> Iterator[str]:
    """List tasks of which several experts are merged: refused where the merge makes several models, else told."""
    merge = MERGE_METHODS[recipe.merge.method]
    if (merge.yields in EACH) != refused or _errors_of(choose_experts, manifest, recipe):
        return
    names = [name for name, _ in choose_experts(manifest, recipe)]
    for task, several in several_of_a_task(manifest, names).items():
        if refused:
            yield (
                f"{merge.title} makes a model for each {EACH[merge.yields]} and takes one expert of a task; the recipe "
                f"names {len(several)} of '{task}' ({', '.join(several)}). Choose one of them, or another merge method."
            )
        else:
            yield compared_with(task, several)


def _unaligned(recipe: Recipe, manifest: Manifest) -> Iterator[str]:
    """List chosen experts that start from another base and whose units are in another order."""
    if _errors_of(choose_experts, manifest, recipe):
        return
    for name, _ in choose_experts(manifest, recipe):
        expert = manifest.expert_table[name]
        if expert.base and not expert.aligned:
            yield (
                f"{name} starts from another base ({expert.base}): its units are in another order, so what is merged "
                f"with it does not fit. Align it first, on the page Zoo or with `zoo align {manifest.name} --expert "
                f"{name}` (as a control, without a change: `--method as_it_is --called NAME`), or choose another "
                "expert of its task."
            )


def refuse(recipe: Recipe, zoo: Zoo, *, unaligned: bool = False) -> None:
    """Refuse a recipe that no run can be made of.

    Args:
        recipe: what is asked for.
        zoo: that it names.
        unaligned: let experts of other bases be as they are, since nothing is merged.

    Raises:
        RecipeError: with every reason.
    """
    let = set(_unaligned(recipe, zoo.manifest)) if unaligned else set()
    errors = [found.text for found in findings(recipe, zoo) if found.level == "error" and found.text not in let]
    if errors:
        raise RecipeError(" ".join(errors))


def _invalid_methods(recipe: Recipe) -> list[str]:
    """List unknown methods and parameters; each method is looked at by itself, so that no error hides another."""
    calls = [(MERGE_METHODS, recipe.merge, "merge method")]
    calls += [(TRANSFORMS, call, "transform") for call in recipe.transforms]
    calls += [(CALIBRATORS, call, "calibrator") for call in recipe.calibrators]
    return [text for table, call, what in calls for text in _errors_of(resolve_call, table, call, what)]


def _errors_of(check: Callable[..., object], *given: object) -> list[str]:
    """Return what a check that raises has to say, as a list."""
    try:
        check(*given)
    except EngineError as error:
        return [str(error)]
    return []


def _refused_experts(recipe: Recipe, zoo: Zoo | Manifest) -> list[str]:
    """List what is wrong with the experts named: none, unknown ones, too few, too many, weights that are not taken."""
    manifest = _manifest(zoo)
    unknown = _errors_of(choose_experts, manifest, recipe)
    return unknown or [
        *_errors_of(check_experts, recipe, len(choose_experts(manifest, recipe))),
        *(
            f"{MERGE_METHODS[recipe.merge.method].title} has settings for '{name}', and the zoo '{manifest.name}' has "
            f"no such expert. {nearest(name, manifest.expert_table)}"
            for name in _params_of_merge(recipe).experts_named()
            if name not in manifest.expert_table
        ),
    ]


def _refused_calibrators(recipe: Recipe, manifest: Manifest) -> Iterator[str]:
    """List calibrators that the zoo's encoders or the merge method have no place for."""
    merge, modality = MERGE_METHODS[recipe.merge.method], modality_of(manifest)
    for call in recipe.calibrators:
        row = CALIBRATORS[call.method]
        if modality.answers(manifest):
            yield (
                f"{row.title} corrects features, and what this zoo's models give are log-likelihoods of answers. Take "
                "the calibrator out."
            )
        elif row.learned(call.params):
            yield from _without_coefficients(recipe, call)
        elif row.deep and call.on == "merged" and merge.yields in EACH:
            yield (
                f"{row.title} acts inside one merged encoder, but {merge.title} makes one for each "
                f"{EACH[merge.yields]}. Choose a calibrator of the output, such as Surgery, or another merge method."
            )


def _misfits(recipe: Recipe, zoo: Zoo | Manifest) -> Iterator[str]:
    """List calibrators that ask for blocks, tokens or dimensions that the zoo's encoder does not have."""
    deep = [call for call in recipe.calibrators if CALIBRATORS[call.method].deep]
    if not deep or not isinstance(zoo, Zoo):
        return
    with suppress(EngineError):  # an encoder that cannot be read is no matter of a recipe
        size = tower_size(architecture(zoo.folder, zoo.manifest))
        for call in deep if size and size.inner else ():
            params = params_of(CALIBRATORS[call.method], call.params)
            yield from (f"{call.name}: {text}" for text in _errors_of(params.shapes, size.inner))


def _without_coefficients(recipe: Recipe, call: CalibratorCall) -> Iterator[str]:
    """Say which merges have coefficients that can go on learning, where the recipe's has none."""
    if call.on != "merged":
        title = CALIBRATORS[call.method].title
        yield f"{call.name}: the pretrained model has no merging coefficients; put {title} on the merged."
    elif MERGE_METHODS[recipe.merge.method].linear is None or recipe.transforms:
        names = ", ".join(row.title for row in MERGE_METHODS.values() if row.linear)
        found = MERGE_METHODS[recipe.merge.method].title + (" behind transforms" if recipe.transforms else "")
        yield (
            f"{call.name}: merging coefficients can learn after {names} without transforms; found {found}. Choose one "
            "of these merges, or `coefficients: frozen`."
        )
    else:
        yield from _outside(recipe, call)


def _outside(recipe: Recipe, call: CalibratorCall) -> Iterator[str]:
    """Say that coefficients which learn are held between 0 and 1, where the merge's are not."""
    row, params = MERGE_METHODS[recipe.merge.method], _params_of_merge(recipe)
    if row.learned(params):
        if not getattr(params, "clamp", True):
            yield (
                f"{call.name}: merging coefficients that learn on are held between 0 and 1, and {row.title} lets its "
                "own leave that (`clamp: false`). Let it clamp them, or choose `coefficients: frozen`."
            )
        return
    start = row.linear(params, 2)
    if not 0 <= start <= 1:
        yield (
            f"{call.name}: merging coefficients that learn on are held between 0 and 1; {row.title} has {start:g}. "
            "Choose λ between 0 and 1, or `coefficients: frozen`."
        )


def _params_of_merge(recipe: Recipe) -> Params:
    return params_of(MERGE_METHODS[recipe.merge.method], recipe.merge.params)


def _lacking(recipe: Recipe, zoo: Zoo | Manifest) -> Iterator[str]:
    """List images, labels and heads that methods and calibrators need and the zoo does not have."""
    manifest = _manifest(zoo)
    if _errors_of(choose_experts, manifest, recipe):
        return
    experts = [manifest.expert_table[name] for name, _ in choose_experts(manifest, recipe)]
    tasks = list(dict.fromkeys(expert.task for expert in experts))
    pictured = [name for name in tasks if name in manifest.task_table and manifest.task_table[name].data]
    bare = [expert.name for expert in experts if expert.factors is None]
    for row in (MERGE_METHODS[recipe.merge.method], *(TRANSFORMS[call.method] for call in recipe.transforms)):
        if "factors" in row.needs and bare:
            yield (
                f"{row.title} adds low-rank factors, and the zoo lists none of {', '.join(bare)}. Choose experts that "
                "were trained with adapters (`zoo finetune --method lora`), or another method."
            )
        yield from _lacking_images(row, zoo, tasks, pictured)
        if "heads" in row.needs and (problem := _no_heads(zoo)):
            yield (
                f"{row.title} needs classification heads (none: {problem}). Add `heads:` to zoo.yaml or choose another "
                "method."
            )
    if recipe.calibrators and (not pictured or _no_heads(zoo)):
        why = f" (no heads: {_no_heads(zoo)})" if _no_heads(zoo) else ""
        yield (
            f"Calibrators need images and heads; the chosen experts' tasks lack one of them{why}. "
            "Take the calibrators out, or add `data:` and `heads:` to zoo.yaml."
        )


def _lacking_images(
    row: MergeRow | TransformRow, zoo: Zoo | Manifest, tasks: list[str], pictured: list[str]
) -> Iterator[str]:
    """List the tasks that lack images, or labelled validation images, which a method needs of each."""
    if not row.needs & {"unlabelled", "validation"}:
        return
    bare = [name for name in tasks if name not in pictured]
    if bare:
        yield (
            f"{row.title} learns from images, and {_listed(bare)} none. Add `data:` to zoo.yaml, leave "
            f"{'that expert' if len(bare) == 1 else 'those experts'} out, or choose a method that needs no images."
        )
    unlabelled = [name for name in pictured if "validation" in row.needs and not _has_validation(zoo, name)]
    if unlabelled:
        yield (
            f"{row.title} needs labelled validation images (val_x, val_y), and {_listed(unlabelled)} none. Nothing is "
            "ever chosen on evaluation images; add them, or choose another method."
        )


def _listed(tasks: list[str]) -> str:
    names = ", ".join(f"'{name}'" for name in tasks)
    return f"task {names} has" if len(tasks) == 1 else f"tasks {names} have"


def _has_validation(zoo: Zoo | Manifest, task: str) -> bool:
    """Return whether a task has labelled validation images; data that cannot be read are no matter of a recipe."""
    if isinstance(zoo, Zoo):
        with suppress(DataError):
            return zoo.data[task].has("val")
    return True


def _no_heads(zoo: Zoo | Manifest) -> str:
    """Return why nothing can be classified; '' where the zoo has heads or can build some."""
    return zoo.text_problem if isinstance(zoo, Zoo) and zoo.manifest.heads is None else ""


def _manifest(zoo: Zoo | Manifest) -> Manifest:
    return zoo.manifest if isinstance(zoo, Zoo) else zoo
