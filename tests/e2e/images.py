"""Dockerfile and compose file as they stand, read and carried out on machines of namespaces.

Two things are not: downloads (``FROM``, ``pip install``), in whose place this environment's Python and packages stand,
and the entry points of other people's images, in whose place the programs are started that this machine has.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.machines import PATH, ROOT, Machine, Network, copy_tracked, link_packages, tracked

PYTHON = "/opt/python"
VARIABLE = re.compile(r"\$\{(\w+)(:\?[^}]*)?\}")


@dataclass
class Image:
    """The outcome of a Dockerfile."""

    layer: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    folder: str = "/"
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)


def instructions(text: str) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions: name, rest."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [tuple(line.strip().split(maxsplit=1)) for line in lines if line.strip()]


def in_context(dockerfile: Path) -> list[str]:
    """Return the tracked files that a build is given, as the ignore file beside the Dockerfile decides."""
    rules = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().split()
    return [name for name in tracked() if _given(name, rules)]


def _given(name: str, rules: list[str]) -> bool:
    """Return whether the last rule that names a file, or a folder around it, lets it in."""
    found = True
    for rule in rules:
        pattern = rule.lstrip("!").removeprefix("**/")
        parts = name.split("/")
        whole = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        among = whole if not rule.lstrip("!").startswith("**/") else parts
        if any(fnmatch.fnmatchcase(one, pattern) for one in among):
            found = rule.startswith("!")
    return found


def build(dockerfile: Path, network: Network, folder: Path) -> Image:
    """Carry a Dockerfile out, the context being the top of the project."""
    machine = Machine(network, folder)
    image = Image(machine.upper, {"PATH": f"{PYTHON}/bin:{PATH}"})
    machine.sh(f"python3 -m venv --without-pip {PYTHON}")
    context = in_context(dockerfile)
    try:
        for name, rest in instructions(dockerfile.read_text()):
            _carry_out(machine, image, context, name, rest)
    finally:
        machine.close()
    return image


def _carry_out(machine: Machine, image: Image, context: list[str], name: str, rest: str) -> None:
    if name == "RUN" and "pip install" in rest:
        for lock in re.findall(r"-r (\S+)", rest):
            machine.sh(f"test -s {lock}", home=image.folder)
        link_packages(machine, PYTHON)
    elif name == "RUN":
        machine.sh(rest, home=image.folder, environment=image.environment)
    elif name == "COPY":
        *sources, target = rest.split()
        _copy(machine, image, context, sources, target)
    elif name == "WORKDIR":
        image.folder = rest
        machine.sh(f"mkdir -p {rest}")
    elif name == "ENV":
        image.environment |= dict(word.split("=", 1) for word in shlex.split(rest))
    elif name == "USER":
        image.user = rest
    elif name == "CMD":
        image.command = json.loads(rest)
    elif name == "HEALTHCHECK":
        image.health = json.loads(rest[rest.index("CMD") + 3 :])
    else:
        assert name in ("FROM", "VOLUME", "EXPOSE", "STOPSIGNAL"), f"nobody carries out {name}"


def _copy(machine: Machine, image: Image, context: list[str], sources: list[str], target: str) -> None:
    """Copy as Docker does: a folder's content, or files by their last name."""
    place = machine.upper / image.folder.lstrip("/") / target
    for source in sources:
        if source == ".":
            copy_tracked(place, context)
        else:
            assert source in context, f"{source} is not given to the build"
            place.mkdir(parents=True, exist_ok=True)
            (place / Path(source).name).write_bytes((ROOT / source).read_bytes())


def composed(file: Path, values: Mapping[str, str]) -> dict[str, Any]:
    """Return a compose file with its variables filled in; one that lacks a value fails."""

    def fill(found: re.Match[str]) -> str:
        assert values.get(found[1]), f"{found[1]} has no value"
        return values[found[1]]

    return yaml.safe_load(VARIABLE.sub(fill, file.read_text()))
