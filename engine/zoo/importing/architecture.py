"""A checkpoint's architecture: sizes from its tensors, the rest read, given, or left open with candidates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, nearest
from ...manifest import Preprocess
from ...types import Weights
from .documents import read_json
from .preprocess import HOW, PUBLISHED, given_preprocess, named_checkpoint, unusual, usual
from .sources import Source
from .stated import Stated, filled, read_stated

PLAIN = ("image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio")
NARROWEST, WIDEST = 8, 256  # attention heads that anybody has trained
_BLOCK = re.compile(r"visual\.transformer\.resblocks\.(\d+)\.ln_1\.weight")


@dataclass(frozen=True)
class Given:
    """A person's word on a base; empty and None leave it to the files."""

    architecture: str = ""  # a name that open_clip knows, or a file with an open_clip model config
    head_width: int | None = None
    quick_gelu: bool | None = None
    preprocess: str | Preprocess = ""


@dataclass(frozen=True)
class Fact:
    """Something that the weights themselves do not say, and how it is known."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class Fault:
    """Something that no zoo can be made with; the words on what to do are those of the command line."""

    text: str
    setting: str = ""  # of the request, where giving it helps


@dataclass(frozen=True)
class Open:
    """A fact that no place states: what fits, and which places were looked at."""

    name: str
    candidates: tuple[tuple[str, Any], ...]  # (for people, value)
    tried: str
    how: str  # how a person can give it
    controls: tuple[
        tuple[str, Any], ...
    ] = ()  # what nobody may mean; one that fits too shows that images cannot decide
    hint: Any = None  # a candidate that a name speaks for, which is no proof
    named: str = ""  # that name, with its place


@dataclass(frozen=True)
class Architecture:
    """An architecture as the manifest names it."""

    name: str  # a name that open_clip knows, or '' for one of its own
    config: dict[str, Any]  # open_clip's model config
    preprocess: Preprocess | None = None  # None while it is open
    facts: tuple[Fact, ...] = ()
    open: tuple[Open, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return the source's name for people."""
        vision = self.config["vision_cfg"]
        own = f"ViT, {vision['layers']} blocks of width {vision['width']}, patches of {vision['patch_size']}"
        gelu = {True: ", QuickGELU", False: ", GELU", None: ""}[self.config.get("quick_gelu")]
        return self.name or own + gelu

    def settled(self, choice: dict[str, Any], origin: str) -> Architecture:
        """Return the architecture with open facts decided; those that the choice leaves out stay open.

        Args:
            choice: name of a fact → value.
            origin: what decided.
        """
        config, preprocess = self.config, self.preprocess
        facts, still_open = list(self.facts), []
        for fact in self.open:
            if fact.name not in choice:
                still_open.append(fact)
                continue
            value = choice[fact.name]
            text = next((text for text, known in fact.candidates if known == value), shown(value))
            facts.append(Fact(fact.name, text, origin))
            if fact.name == "preprocess":
                preprocess = value
            elif fact.name == "quick_gelu":
                config = {**config, "quick_gelu": value}
            else:
                config = {**config, "vision_cfg": {**config["vision_cfg"], fact.name: value}}
        return replace(
            self,
            name=_known_name(config),
            config=config,
            preprocess=preprocess,
            facts=tuple(facts),
            open=tuple(still_open),
        )

    def asked(self, places: Sequence[tuple[str, Stated]]) -> Architecture:
        """Return the architecture with open facts taken from experts' own places, where all that say it agree.

        Args:
            places: how people are told of each, and what it states.
        """
        settled = self
        own = [(place, stated) for place, stated in places if _same_sizes(stated.config, self.config)]
        for fact in self.open:
            said = [(getattr(stated, fact.name), place) for place, stated in own]
            said = [(value, place) for value, place in said if value is not None]
            fits = fact.name == "preprocess" or all(
                value in [known for _, known in fact.candidates] for value, _ in said
            )
            if said and fits and all(value == said[0][0] for value, _ in said):
                settled = settled.settled({fact.name: said[0][0]}, f"read: {said[0][1]}")
        return settled


@dataclass
class _Found:
    """The parts of an architecture, collected on the way."""

    shapes: dict[str, Any]
    given: Given
    stated: list[Stated]
    facts: list[Fact] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def said(self, name: str) -> Iterator[tuple[Any, str]]:
        """Return values of a fact with the places that state them."""
        for stated in self.stated:
            if getattr(stated, name) is not None:
                yield getattr(stated, name), stated.origin

    def tried(self) -> str:
        """Return the places that were asked."""
        places = ", ".join(stated.origin for stated in self.stated)
        problems = "".join(f" ({stated.origin}: {stated.problem})" for stated in self.stated if stated.problem)
        return (places or "no config, header or pickled module is there") + problems


def recognise(source: Source, visual: Weights, given: Given = Given()) -> Architecture:
    """Recognise a base's architecture and preprocessing.

    Args:
        source: where the tensors come from; what lies beside them and what they say is asked first.
        visual: the canonical ``visual.*`` tensors, projection included.
        given: a person's word, which counts more than any file's.

    Returns:
        The architecture; facts that nobody states are listed as open, with every candidate that fits the shapes.

    Raises:
        EngineError: not a CLIP ViT, or another one than asked for or stated.
    """
    shapes = _from_shapes(visual)
    size, width = shapes["vision_cfg"]["image_size"], shapes["vision_cfg"]["width"]
    found = _Found(shapes, given, _fitting(source, shapes, read_stated(source, size, width)))
    fits = f", which fit {given.architecture} as given" if given.architecture else ""
    found.facts.append(Fact("architecture", _sizes_in_words(shapes), f"read: the shapes of the weights{fits}"))
    if given.architecture:
        asked = _asked_config(given.architecture)
        _compare(asked, shapes, given.architecture)
        gelu = None if given.architecture in _known() else bool(asked["quick_gelu"])
        gelu = True if asked["quick_gelu"] else gelu
        origin = f"given: {given.architecture}"
        found.stated.insert(0, Stated(origin, asked, asked["vision_cfg"]["head_width"], gelu))
    stated = next((stated.config for stated in found.stated if stated.config is not None), {})
    vision = {**stated.get("vision_cfg", {}), **shapes["vision_cfg"]}
    vision["head_width"] = _head_width(found, width)
    config = {**stated, "embed_dim": shapes["embed_dim"], "vision_cfg": vision}
    config["quick_gelu"] = _activation(found)
    preprocess = _preprocess(found, source, size)
    architecture = Architecture(
        _known_name(config), config, preprocess, tuple(found.facts), tuple(found.open), tuple(found.warnings)
    )
    return architecture


def _fitting(source: Source, shapes: dict[str, Any], stated: Sequence[Stated]) -> list[Stated]:
    """Return what belongs to these weights; a config in their own folder that does not fit is a fault."""
    found = []
    for one in stated:
        if one.config is not None:
            try:
                _compare(one.config, shapes, f"{source.path.name}: {one.origin}")
            except CheckpointError:
                if not source.loose:
                    raise
                continue
        found.append(one)
    return found


def _asked_config(asked: str) -> dict[str, Any]:
    import open_clip

    if asked.endswith(".json"):
        document = read_json(Path(asked).expanduser())
        return filled(document.get("model_cfg", document), asked)
    if asked not in open_clip.list_models():
        raise CheckpointError(f"open_clip knows no architecture '{asked:.60}'. {nearest(asked, _known())}")
    return filled(dict(open_clip.get_model_config(asked)), asked)


def _from_shapes(visual: Weights) -> dict[str, Any]:
    needed = ("visual.conv1.weight", "visual.positional_embedding", "visual.proj", "visual.class_embedding")
    for name in (*needed, "visual.transformer.resblocks.0.mlp.c_fc.weight"):
        if name not in visual.names:
            raise CheckpointError(
                f"The base has no {name}. "
                + (
                    "Choose a complete CLIP model, or a CLIPVisionModelWithProjection, as the base."
                    if name == "visual.proj"
                    else "A CLIP ViT is needed."
                )
            )
    patch, positions = visual.shape("visual.conv1.weight"), visual.shape("visual.positional_embedding")
    projection, hidden = visual.shape("visual.proj"), visual.shape("visual.transformer.resblocks.0.mlp.c_fc.weight")
    if (len(patch), len(positions), len(projection), len(hidden)) != (4, 2, 2, 2) or not positions[1]:
        raise CheckpointError(f"The base's patch embedding {patch} or positions {positions} are of no CLIP ViT.")
    width, side = positions[1], math.isqrt(max(positions[0] - 1, 0))
    if side * side + 1 != positions[0] or patch[0] != width or patch[2] != patch[3] or projection[0] != width:
        raise CheckpointError(
            f"The base's shapes do not belong together: patch embedding {patch}, positions {positions}, projection "
            f"{projection}. A CLIP ViT with square images and patches is needed."
        )
    blocks = {int(found[1]) for name in visual.names if (found := _BLOCK.fullmatch(name))}
    if blocks != set(range(len(blocks))):
        raise CheckpointError(f"The base's blocks are numbered {sorted(blocks)[:5]} …; 0, 1, 2 … is expected.")
    vision = {"image_size": side * patch[2], "layers": len(blocks), "width": width, "patch_size": patch[2]}
    return {"embed_dim": projection[1], "vision_cfg": {**vision, "mlp_ratio": hidden[0] / width}}


def _same_sizes(stated: dict[str, Any] | None, config: dict[str, Any]) -> bool:
    """Return whether a config that lies somewhere, if any, is of a model of these sizes."""
    names = ("image_size", "layers", "width", "patch_size")
    return stated is None or all(stated["vision_cfg"][name] == config["vision_cfg"][name] for name in names)


def _compare(stated: dict[str, Any], found: dict[str, Any], origin: str) -> None:
    for name in ("image_size", "layers", "width", "patch_size"):
        if stated["vision_cfg"][name] != found["vision_cfg"][name]:
            raise CheckpointError(
                f"{origin} says {name} {stated['vision_cfg'][name]}; the weights have "
                f"{found['vision_cfg'][name]}. They do not belong together."
            )


def _head_width(found: _Found, width: int) -> int | None:
    """Return the width of an attention head: given, stated, or that of the one known architecture with these shapes."""
    known = {config["vision_cfg"].get("head_width", 64) for config in _of_shapes(found.shapes)}
    by_shapes = [(known.pop(), "read: the shapes are those of open_clip's architecture")] if len(known) == 1 else []
    value, origin = _first(found, "head_width", found.given.head_width, by_shapes)
    if value is not None:
        if width % value:
            raise CheckpointError(
                f"Attention heads of width {value} ({origin}) do not divide the weights' width of {width}."
            )
        found.facts.append(Fact("head_width", f"{value} ({width // value} heads)", origin))
        return value
    fitting = [part for part in range(NARROWEST, min(WIDEST, width) + 1) if not width % part]
    candidates = tuple((f"{part} ({width // part} heads)", part) for part in fitting)
    how = f"Give --head-width, one of {', '.join(map(str, fitting))}, or the model's config with --architecture"
    found.open.append(Open("head_width", candidates, found.tried(), how))
    return None


def _activation(found: _Found) -> bool | None:
    """Return quickGELU or GELU: given or stated; weights alone never tell."""
    value, origin = _first(found, "quick_gelu", found.given.quick_gelu)
    if value is not None:
        found.facts.append(Fact("quick_gelu", "QuickGELU" if value else "GELU", origin))
        return value
    how = "Give --quick-gelu (OpenAI's own weights) or --no-quick-gelu (most others)"
    found.open.append(Open("quick_gelu", (("QuickGELU", True), ("GELU", False)), found.tried(), how))
    return None


def _preprocess(found: _Found, source: Source, size: int) -> Preprocess | None:
    given = found.given.preprocess
    asked = (given_preprocess(given, size) if isinstance(given, str) else given) if given else None
    value, origin = _first(found, "preprocess", asked)
    if value is not None:
        if isinstance(given, str) and given:
            origin = f"given: {given}"
        found.facts.append(Fact("preprocess", value.words, origin))
        return value
    name, place = named_checkpoint(source)
    hint = next((value for preset, value in usual(size) if preset == PUBLISHED), None) if name else None
    how = (
        f"{place} names {name}, which was trained with --preprocess {PUBLISHED}; give that if it is right. "
        if name
        else ""
    )
    named = f"{place} names {name}"
    found.open.append(Open("preprocess", usual(size), found.tried(), how + HOW, unusual(size), hint, named))
    return None


def _first(found: _Found, name: str, given: Any, more: Sequence[tuple[Any, str]] = ()) -> tuple[Any, str]:
    """Return the first value of a fact and where it is from; a person's word against a file's is warned about."""
    said = [(value, origin if origin.startswith("given") else f"read: {origin}") for value, origin in found.said(name)]
    said = [*([(given, "given")] if given is not None else []), *said, *more]
    if not said:
        return None, ""
    value, origin = said[0]
    others = [(other, place) for other, place in said[1:] if other != value]
    if others:
        other, place = others[0]
        found.warnings.append(
            f"{TITLES[name]}: {shown(value)} is taken ({origin}); {shown(other)} is said elsewhere ({place})."
        )
    return value, origin


TITLES = {"head_width": "Width of attention heads", "quick_gelu": "Activation", "preprocess": "Preprocessing"}


def shown(value: Any) -> str:
    """Return a fact's value for people."""
    if isinstance(value, bool):
        return "QuickGELU" if value else "GELU"
    return value.words if isinstance(value, Preprocess) else str(value)


def _sizes_in_words(shapes: dict[str, Any]) -> str:
    vision = shapes["vision_cfg"]
    inside = f"{vision['layers']} blocks of width {vision['width']}, patches of {vision['patch_size']} px"
    return f"ViT, {inside}, images of {vision['image_size']} px, embeddings of {shapes['embed_dim']}"


def _of_shapes(shapes: dict[str, Any]) -> list[dict[str, Any]]:
    """Return known architectures whose tensors have these shapes."""
    wanted = _sizes(shapes)
    return [config for config in _known().values() if _sizes(config) == wanted]


def _known_name(config: dict[str, Any]) -> str:
    """Return the known architecture that a config is, text side included where it has one."""
    if config.get("quick_gelu") is None or set(config["vision_cfg"]) - set(PLAIN):
        return ""
    wanted = _signature(config)
    return next(
        (name for name, known in _known().items() if _signature(known) == wanted and _same_text(config, known)), ""
    )


def _same_text(config: dict[str, Any], known: dict[str, Any]) -> bool:
    own = config.get("text_cfg")
    return own is None or all(known["text_cfg"].get(name) == value for name, value in own.items())


def _sizes(config: dict[str, Any]) -> tuple[Any, ...]:
    vision = config["vision_cfg"]
    return (
        config["embed_dim"],
        *(vision[name] for name in ("image_size", "layers", "width", "patch_size")),
        round(vision.get("mlp_ratio", 4.0) * vision["width"]),
    )


def _signature(config: dict[str, Any]) -> tuple[Any, ...]:
    heads = config["vision_cfg"].get("head_width", 64)
    return (*_sizes(config), bool(config.get("quick_gelu", False)), heads)


@cache
def _known() -> dict[str, dict[str, Any]]:
    """Return open_clip's plain CLIP ViTs: nothing but width, depth, patches, image size and head width differs."""
    import open_clip

    found = {}
    for name in sorted(open_clip.list_models(), key=lambda name: (len(name), name)):
        config = open_clip.get_model_config(name)
        vision, text = config["vision_cfg"], config.get("text_cfg", {})
        if name.startswith("ViT-") and set(vision) <= set(PLAIN) and "hf_model_name" not in text:
            found[name] = dict(config)
    return found
