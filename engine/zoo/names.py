"""Public tasks by the names of files and folders. Free of torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from ..manifest import SAFE_NAME

# Canonical name → title and how public checkpoints and data sets spell it (letters and digits only, lower case); no
# common words, which mean anybody's data (`Cars` is what public checkpoints are called).
TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sun397": ("SUN397", ("sun397",)),
    "stanford_cars": ("Stanford Cars", ("stanfordcars", "cars")),
    "resisc45": ("RESISC45", ("resisc45", "resisc")),
    "eurosat": ("EuroSAT", ("eurosat",)),
    "svhn": ("SVHN", ("svhn",)),
    "gtsrb": ("GTSRB", ("gtsrb",)),
    "mnist": ("MNIST", ("mnist",)),
    "dtd": ("DTD", ("dtd",)),
    "flowers102": ("Oxford Flowers 102", ("oxfordflowers102", "flowers102", "oxfordflowers")),
    "pcam": ("PatchCamelyon", ("patchcamelyon", "pcam")),
    "fer2013": ("FER2013", ("fer2013",)),
    "oxford_iiit_pet": ("Oxford-IIIT Pet", ("oxfordiiitpet", "oxfordpets", "oxfordpet")),
    "stl10": ("STL-10", ("stl10",)),
    "cifar100": ("CIFAR-100", ("cifar100",)),
    "cifar10": ("CIFAR-10", ("cifar10",)),
    "food101": ("Food-101", ("food101",)),
    "fashion_mnist": ("Fashion-MNIST", ("fashionmnist", "fmnist")),
    "emnist_letters": ("EMNIST Letters", ("emnistletters", "emnist")),
    "kmnist": ("KMNIST", ("kmnist",)),
    "rendered_sst2": ("Rendered SST-2", ("renderedsst2", "sst2")),
}
_ALIASES = sorted(
    ((alias, name) for name, (_, aliases) in TASKS.items() for alias in aliases), key=lambda pair: -len(pair[0])
)
_BASES = ("zeroshot", "pretrained", "base", "openai", "laion")
_EMPTY = ("finetuned", "model", "pytorchmodel", "checkpoint", "best", "last", "weights", "adaptermodel", "final")
_EMPTY += ("openclipmodel", "openclippytorchmodel", "visual", "clip", "merged")
_ARCHITECTURE = re.compile(r"(open)?(clip)?vit(base|large|huge|giant|big)?[bslhg]?(patch)?(14|16|32)?(336)?")
_PUBLISHED = re.compile(_ARCHITECTURE.pattern + r"(quickgelu)?(laion|openai|datacomp|commonpool|metaclip|dfn)")
_TEXT_BASE = re.compile(  # as publishers of text models call them
    r"(distil)?(bert|roberta)(base|large)(multilingual)?((un)?cased)?(v\d)?"
    r"|(google|flan)?t5(v11)?(lm)?(adapt)?(small|base|large|xl|xxl|3b|11b)|(distil)?gpt2(medium|large|xl)?"
)


def known_task(text: str) -> str | None:
    """Return the public task that a text names, the longest spelling first; None where there is none.

    ``clip-vit-base-patch32_fashion_mnist`` means Fashion-MNIST, not MNIST.
    """
    letters = _letters(text)
    if not letters:
        return None
    for alias, name in _ALIASES:
        if letters == alias or letters.removesuffix("val") == alias:
            return name
    words = [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]
    joined = {"".join(words[start:stop]) for start in range(len(words)) for stop in range(start + 1, len(words) + 1)}
    for alias, name in _ALIASES:
        if alias in joined:
            return name
    return None


def title_of(task: str) -> str:
    """Return a public task's title, else the name itself."""
    return TASKS[task][0] if task in TASKS else task


def expert_name(path: PurePath) -> str:
    """Return the name of an expert from where its file lies: a public task's, else the most telling part of the path.

    ``ViT-B-32/Cars/finetuned.pt`` is stanford_cars, ``runs/birds.safetensors`` is birds.
    """
    parts = [path.stem if path.suffix in (".pt", ".pth", ".bin", ".safetensors") else path.name, *_parents(path)]
    for part in parts:
        bare = re.sub(r"^(head|heads|expert)[_-]", "", part)
        if found := known_task(bare):
            return found
        if _telling(bare):
            return safe_name(bare)
    return safe_name(parts[0])


def looks_like_base(path: PurePath) -> bool:
    """Return whether a file's or folder's name says that it is the pretrained model."""
    letters = _letters((path.stem if path.suffix else path.name).rpartition("--")[2])  # OWNER--NAME of the hub
    if letters in _EMPTY and path.suffix:
        letters = _letters(path.parent.name)
    return letters.startswith(_BASES) or bool(
        letters and (_ARCHITECTURE.fullmatch(letters) or _PUBLISHED.match(letters) or _TEXT_BASE.fullmatch(letters))
    )


def looks_like_head(path: PurePath) -> bool:
    """Return whether a file's name says that it is a classification head."""
    return path.stem.lower().startswith("head")


def safe_name(text: str) -> str:
    """Return a text as a name that a manifest takes: letters, digits, ``_``, ``.`` and ``-``, at most 64."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.-")[:64].rstrip("_.-")
    return name if re.fullmatch(SAFE_NAME, name) else "expert"


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names, later ones of the same spelling numbered."""
    taken: set[str] = set()
    result = []
    for name in names:
        number, free = 2, name
        while free in taken:
            free, number = f"{name[:60]}_{number}", number + 1
        taken.add(free)
        result.append(free)
    return result


def _parents(path: PurePath) -> list[str]:
    return [parent.name for parent in path.parents if parent.name][:2]


def _telling(part: str) -> bool:
    """Return whether a part of a path says more than that there is a model of some architecture."""
    letters = re.sub(r"\d+of\d+$", "", _letters(part))
    return bool(letters) and letters not in _EMPTY and not _ARCHITECTURE.fullmatch(letters) and letters not in _BASES


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
