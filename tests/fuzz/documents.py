"""Changes to parsed documents, and YAML that only a text can hold."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import yaml

BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 40))])
STRINGS = (
    "",
    " ",
    "..",
    "../../outside.safetensors",
    "/etc/passwd",
    "~",
    "a\0b",
    "C:\\x",
    "x" * 100_000,
    "\u202egpj.x",
    "nan",
    "{}",
    "{0.__class__}",
    "{",
    "%s",
    "hf:a/b",
    "torchvision:MNIST",
    "__import__('os').system('x')",
    "on",
    "ViT-B-32",
    "ViT-H-14",
    "all",
    "base.safetensors",
    "data",
    ".",
    "*",
    "<script>",
    "\ud7ff",
)
NUMBERS = (0, -1, 1, 2, 2**31, 2**63, 2**64, 10**30, -(10**18), 1e308, -0.0, 1e-300, float("nan"), float("inf"))
YAML_TEXTS = (
    BOMB,
    "!!python/object/apply:os.system ['true']",
    "!!python/name:os.system",
    "[" * 3000,
    "{" * 3000,
    "a: " * 500,
    "- " * 3000,
    "&a [*a]",
    "a: &a\n  b: *a",
    "? [1, 2]\n: 3",
    "? {a: b}\n: 3",
    "<<: [1]",
    "<<: *x",
    "a: 2001-99-99",
    "a: 2001-01-01 25:61:61",
    "a: 1:99:99",
    "a: 0x",
    "a: 0b2",
    "a: 0o9",
    "a: .",
    "a: =",
    "--- 1\n--- 2",
    "%YAML 9.9\n---\na: 1",
    "\ufeffa: 1",
    "a: !!binary x",
    "a: !!set {b}",
    "a: !!omap [b: 1]",
    "a: !!pairs [b: 1]",
    "a: !!int x",
    "a: !!float x",
    "a: !!timestamp x",
    "a: !!merge x",
    "a: !!bool x",
    "a: !!null x",
    "!!map [1]",
    "!!seq {a: 1}",
    "a: |9\n x",
    "\t",
    "a:\tb",
    f"a: {'9' * 5000}",
    f"a: 1e{'9' * 50}",
    "a: 1.5e400",
    '"\\U00110000"',
    '"\\ud800"',
    "'",
    "a: 'b",
    "null",
    "~",
    "42",
    "''",
)


def nodes(value: Any, parent: Any = None, key: Any = None) -> Iterator[tuple[Any, Any, Any]]:
    """Every node with its parent and its place there."""
    yield parent, key, value
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, child in list(entries):
        yield from nodes(child, value, place)


def nested(depth: int, rng: Random) -> Any:
    value: Any = rng.choice((1, "x", None))
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def strange(rng: Random, document: Any) -> Any:
    """A value that somebody did not expect."""
    kind = rng.randrange(8)
    if kind < 2:
        return rng.choice(STRINGS)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind == 4:
        return rng.choice((None, True, False, [], {}, [[]], [None], {"": 1}, [1, "a", None], {"a": {"a": {}}}))
    if kind == 5:
        return nested(rng.choice((2, 30, 400)), rng)
    if kind == 6:
        return ["x"] * rng.choice((1, 100, 20_000))
    return copy.deepcopy(rng.choice(list(nodes(document)))[2])


def change(document: Any, rng: Random) -> Any:
    """A copy with one to three changes."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 3))):
        parent, key, value = rng.choice(list(nodes(changed)))
        action = rng.randrange(10)
        if parent is None:
            if rng.random() < 0.1:
                changed = strange(rng, changed)
        elif action < 5:
            parent[key] = strange(rng, changed)
        elif action == 5:
            del parent[key]
        elif action == 6 and isinstance(parent, dict):
            parent[rng.choice(("x", "", "__class__", "weights", 7, str(key) + "s"))] = value
        elif action == 7 and isinstance(parent, list):
            parent.append(copy.deepcopy(value))
        elif isinstance(value, str):
            place = rng.randrange(len(value) + 1)
            parent[key] = value[:place] + rng.choice(STRINGS[:8]) + value[place:]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            parent[key] = value * rng.choice((-1, 2, 0, 1000, 10**9, 0.5))
    return changed


def json_text(document: Any, rng: Random) -> str:
    """JSON, now and then with a key twice."""
    text = json.dumps(document)
    if rng.random() < 0.1 and isinstance(document, dict) and document:
        key = rng.choice(list(document))
        text = "{" + f"{json.dumps(str(key))}: {json.dumps(strange(rng, document))}, " + text[1:]
    return text


def changed_json(text: str, rng: Random) -> str:
    return json_text(change(json.loads(text), rng), rng)


def changed_yaml(text: str, rng: Random) -> str:
    """YAML of a changed document, or text that plays with YAML itself."""
    if rng.random() < 0.25:
        other = rng.choice(YAML_TEXTS)
        return other if rng.random() < 0.5 else text + "\n" + other
    document = change(yaml.safe_load(text), rng)
    try:
        as_json = rng.random() < 0.3 or not yaml.safe_dump(document)
    except RecursionError:
        as_json = True
    if as_json:
        return json_text(document, rng)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
