"""Survey of an import of text models: base, experts, classifiers, tokenizers and texts; nothing is written."""

from __future__ import annotations

from pathlib import Path

from ....errors import CheckpointError, ZooError
from ....manifest import RESERVED
from ....types import Progress, Weights
from ....weights import check_same_architecture
from ....weights.families import distance, family_warnings, far_warnings, moved, sampled
from ...encoders.backbone import misfits
from ...names import distinct, safe_name
from ...texts.config import END, PADDING, checked, longest, with_tokens
from ...texts.families import Family
from ..architecture import Fact, Fault
from ..as_zoo import attempt, inspect_as_zoo
from ..found import Row, size_of
from ..peft import adapt
from ..request import ImportRequest, Item
from ..sources import Source, open_source
from .found import LENGTH, TextSurvey
from .models import FirstRows, TextModel, check_base, classifier_of, find_model
from .staged import stage
from .tasks import task_of, task_outside
from .tokenizers import difference, has_tokenizer, read_tokens


def survey_texts(request: ImportRequest, progress: Progress) -> TextSurvey:
    """Look at everything that is to become a zoo of texts, as thoroughly as at a zoo; nothing is written.

    Args:
        request: what is asked for.
        progress: told how far it is.
    """
    found = TextSurvey(request)
    base = attempt(found, lambda: _take_base(found))
    if base is None:
        return found
    names = distinct(item.name or safe_name(Path(item.path).name) for item in request.experts)
    names = [f"expert_{name}" if name in RESERVED else name for name in names]
    for number, (item, name) in enumerate(zip(request.experts, names, strict=True)):
        progress(0.4 * number / len(names), f"Looking at {name}")
        attempt(found, lambda item=item, name=name: _take_expert(found, item, name, base))
    if request.heads:
        said = (
            f"The head {Path(request.heads[0].path).name} is given by itself; a text expert brings its classifier "
            "along. Leave heads out."
        )
        found.faults.append(Fault(said))
    tasks = {item.task or name for item, name in zip(request.experts, names, strict=True)}
    outside = [task for task in request.data if task not in tasks]
    if outside and not found.family.answers:
        said = (
            f"The texts of '{outside[0]}' have no expert, and so no classifier: a text task is scored with its "
            "expert's. Leave them out, or name the expert's task so."
        )
        found.faults.append(Fault(said))
    elif outside:
        for task in outside:
            attempt(found, lambda task=task: found.texts.append(task_outside(found, task)))
    _compare(found)
    if not found.faults:
        _inspect(found, lambda fraction, message="": progress(0.4 + 0.6 * fraction, message))
    return found


def _take_base(found: TextSurvey) -> Weights:
    request = found.request
    source = open_source(Path(request.base).expanduser())
    if source.adapter:
        raise CheckpointError(f"{source.path.name} is a LoRA adapter; the base must be the complete model it was for.")
    found.stated, found.config = source.config, checked(source.config, f"{source.path.name}/config.json")
    family = found.family
    model = find_model(source, family)
    if family.answers:
        found.config["tie_word_embeddings"] = model.tied
        output = "its table of embeddings (tied)" if model.tied else "a layer of its own (untied)"
        found.facts.append(Fact("output", output, "read: the weights"))
    check_base(model.encoder, misfits(found.config, model.encoder), family, found.config)
    found.tokens = read_tokens(_folder(source), family.kind)
    rows = family.size(found.config, "vocabulary")
    if len(found.tokens.words) > rows:
        raise CheckpointError(
            f"The base's tokenizer has {len(found.tokens.words):,} tokens, its table of embeddings {rows:,} rows. The "
            "tokenizer belongs to another model."
        )
    stated, special = found.config, found.tokens.special
    found.config = with_tokens(stated, special, f"{source.path.name}/config.json")
    _settle_length(found)
    row = _row("base", "base", "", source, model, found)
    for name, said, token in ((PADDING, "texts are padded", special[0]), (END, "answers end", special[2])):
        if found.config.get(name) != stated.get(name):
            row.notes.append(f"{said} with the tokenizer's token {token}; its config says {stated[name]}")
    row.notes.append(f"{found.label}, {len(found.tokens.words):,} tokens")
    if model.classifier is not None:
        row.notes.append("its classifier is left out; each expert has its own")
    found.rows.append(row)
    found.models["base"], found.base = model.encoder, source
    return model.encoder


def _settle_length(found: TextSurvey) -> None:
    most, asked = longest(found.config), found.request.length
    if asked is not None and most is not None and asked > most:
        raise ZooError(f"Texts of {asked} tokens are asked for; the base reads {most}. Lower the length.")
    found.length = asked or min(LENGTH, most or LENGTH)
    origin = "given" if asked else f"the default, of {most} that the base reads" if most else "the default"
    found.facts.append(Fact("length", f"{found.length} tokens a text; longer ones are cut", origin))


def _take_expert(found: TextSurvey, item: Item, name: str, base: Weights) -> None:
    source = open_source(Path(item.path).expanduser())
    family = found.family
    kind = source.config.get("model_type", family.kind)
    if kind != family.kind:
        raise CheckpointError(
            f"Expert '{name}' is of the kind {kind!r:.40}; the base is a {family.title}. Choose one architecture."
        )
    if source.adapter:
        model = _adapted(source, base, family)
    else:
        model = find_model(source, family)
        if family.answers and model.tied != found.config["tie_word_embeddings"]:
            mine, own = ("tied" if tied else "untied" for tied in (found.config["tie_word_embeddings"], model.tied))
            raise CheckpointError(
                f"Expert '{name}' has an output that is {own}, the base's is {mine}: their tensors do not correspond. "
                "Choose experts that were fine-tuned from this base."
            )
    row = _row("expert", name, item.task or name, source, model, found)
    _same_words(found, source, name, model, base, row)
    check_same_architecture(base, model.encoder, name)
    row.tensors = len(model.encoder.names)
    found.texts.append(task_of(found, row, model, source))
    found.models[name], found.sources[name] = model.encoder, source
    found.rows.append(row)


def _adapted(source: Source, base: Weights, family: Family) -> TextModel:
    """Merge a LoRA adapter onto the base; whole layers in it are its classifier."""
    layers = tuple(part for part in (family.classifier, family.dense) if part)
    beside = {}
    for name in source.weights.names:
        bare = name.removeprefix("base_model.model.").replace("modules_to_save.default.", "")
        if bare.startswith(tuple(f"{layer}." for layer in layers)) and ".lora_" not in bare:
            beside[bare] = name
    saved = source.adapter.get("modules_to_save") or []
    known = {layer.split(".")[0] for layer in layers} | {"score"}
    if strange := [str(part) for part in saved if part not in known]:
        raise CheckpointError(
            f"The adapter holds whole copies of {', '.join(strange)[:80]}; only a classifier may be one. Merge it with "
            "PEFT's merge_and_unload and import the merged model."
        )

    def target(module: str, base: Weights) -> tuple[str, int]:
        inner = module.removeprefix(family.published)
        name = f"{family.layout.prefix}{inner}.weight"
        if name not in base.names:
            raise CheckpointError(
                f"The adapter changes {module:.100}, which the base does not have. It belongs to another model."
            )
        return name, -1

    merged, dropped = adapt(source, base, target, beside.values() or ("\0",))
    return TextModel(merged, classifier_of(source.weights, beside, family, source.path.name), dropped=dropped)


def _same_words(found: TextSurvey, source: Source, name: str, model: TextModel, base: Weights, row: Row) -> None:
    """Refuse another tokenizer than the base's; of a vocabulary that only grew the base's rows are kept.

    Raises:
        CheckpointError: with the first difference.
    """
    folder, family = _folder(source), found.family
    tokens = read_tokens(folder, family.kind) if has_tokenizer(folder) and folder != _folder_of_base(found) else None
    if tokens is None:
        row.notes.append("no tokenizer of its own; the base's is taken")
    elif found.tokens is not None:
        what, more = difference(found.tokens, tokens)
        if what:
            raise CheckpointError(
                f"Expert '{name}' reads texts with another tokenizer than the base: {what}. The same id means another "
                "word, so the tables of embeddings cannot be merged. Choose experts of this base."
            )
        if more:
            found.warnings.append(
                f"Expert '{name}' has {more} words that the base does not know. Their rows are left out; the base's "
                "rows are kept and merged, and texts are read with the base's tokenizer."
            )
    tables = {}
    for table in (f"{family.layout.prefix}{family.anchor}", f"{family.layout.prefix}lm_head.weight"):
        if table in base.names and table in model.encoder.names:
            mine, own = base.shape(table), model.encoder.shape(table)
            if mine != own and mine[1:] == own[1:] and own[0] > mine[0] and tokens is not None:
                tables[table] = mine[0]
    if tables:
        model.encoder = FirstRows(model.encoder, tables)
        row.notes.append(f"the first {min(tables.values()):,} rows of its table of embeddings are taken")
        row.bytes = size_of(model.encoder, found.request)


def _row(role: str, name: str, task: str, source: Source, model: TextModel, found: TextSurvey) -> Row:
    weights = model.encoder
    whole = next((tensor for tensor in weights.names if not weights.dtype(tensor).is_floating_point), None)
    if whole is not None:
        raise CheckpointError(
            f"{source.path.name} stores {whole} as whole numbers: it is quantised, and its scales are lost in this "
            "form. Take the file of floating-point weights."
        )
    dtypes = sorted({str(weights.dtype(tensor)).removeprefix("torch.") for tensor in weights.names})
    layout = f"LoRA adapter of rank {source.adapter.get('r')}" if source.adapter else found.family.title
    notes = [f"left out: {what}" for what in model.dropped]
    size = size_of(weights, found.request)
    return Row(role, name, task, str(source.path), layout, ", ".join(dtypes), len(weights.names), size, notes=notes)


def _compare(found: TextSurvey) -> None:
    """Compare what experts trained, where it is cheap."""
    if "base" not in found.models or found.faults:
        return
    base = {name: found.models["base"].tensor(name).clone() for name in sampled(found.models["base"])}
    experts = {row.name: found.models[row.name] for row in found.experts}
    for row in found.experts:
        row.distance = distance(base, {name: experts[row.name].tensor(name) for name in base})
        found.warnings += far_warnings(row.name, row.distance)
    found.warnings += family_warnings(moved(found.models["base"], experts))


def _inspect(found: TextSurvey, progress: Progress) -> None:
    """Look at the zoo that this will be."""
    places = {task.name: f"data/{task.name}" for task in found.texts if task.table is not None}
    inspect_as_zoo(found, places, stage, progress)


def _folder(source: Source) -> Path:
    return source.path if source.path.is_dir() else source.path.parent


def _folder_of_base(found: TextSurvey) -> Path | None:
    return _folder(found.base) if found.base is not None else None
