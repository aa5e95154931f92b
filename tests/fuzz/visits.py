"""Visits that no browser makes: addresses, messages of the app's own components, and bytes that are no messages."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from random import Random
from typing import Any
from urllib.parse import quote_plus

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.exceptions import ConnectionClosed

from tests.e2e.sessions import Drawn, Session
from tests.fuzz.bytes_ import damage
from tests.fuzz.documents import STRINGS, change, json_text

PAGES = (
    *("lab", "representations", "accuracy", "diagnose", "calibrate", "salience", "weights", "premerging", "runs"),
    *("learn", "compare", "sweep", "methods", "experiments", "zoo", "bring"),
)
READ = {  # parameters that pages read themselves, with what they may hold
    "run": ("ties", "task-arithmetic", "text-task-arithmetic"),
    "runs": ("ties,ties-lwptv", "ties", "ties,ties,ties,ties,ties,ties,ties"),
    "job": ("ties",),
    "task": ("digits", "signs"),
    "class": ("1", "0"),
    "images": ("1,2,3", "0"),
    "list": ("lost", "shifted"),
    "picked": ("00000000.AAAA",),
    "at": ("0.3", "1"),
    "sweep": ("1",),
    "lesson": ("what-merging-breaks",),
    "step": ("1", "2"),
    "zoo": ("mini8", "mini_text"),
    "zoo.task": ("digits",),
    "files": ("0" * 32,),
    "experiment": ("analogy",),
}
OWN = {
    "lab": ("run", "at", "job"),
    "representations": ("run", "list", "picked"),
    "learn": ("lesson", "step", "class"),
    "compare": ("runs",),
    "sweep": ("sweep",),
    "experiments": ("experiment",),
    "zoo": ("zoo", "zoo.task"),
    "bring": ("files", "job"),
}
OTHERS = ("run", "task", "class", "images")
ODD = (
    *STRINGS,
    *("²", "٣", "1e9", "-1", "9" * 5000, "1" * 300_000, ",".join("1234567" for _ in range(20_000)), "," * 50_000),
    *(
        "[" * 5000,
        "%00",
        "%",
        "%zz",
        "a=b&c=d",
        "\ud800",
        "\r\nSet-Cookie: a=b",
        "/" * 5000,
        "a/../../b",
        "‮abc",
        "\x1b[31m",
    ),
)
UNEXPECTED = "Something unexpected went wrong"
MESSAGES = 4  # of one visit
DEEP = 100  # brackets, below which Streamlit parses what it is sent
LIMIT = 1_000_000  # characters of a message, which is far more than the app's own scripts send

Outcome = tuple[str, str]  # read, refused or failed; and why


def address(session: Callable[..., Session], rng: Random) -> Outcome:
    """Open a page with parameters of it that are not as they should be."""
    page = rng.choice(PAGES)
    own, widgets = OWN.get(page, OTHERS), keys_of(session, page)
    names = list(own[: rng.randint(1, len(own))])
    names += [rng.choice(widgets) for _ in range(rng.choice((0, 0, 1, 2)))] if widgets else []
    names += [rng.choice(list(READ))] if rng.random() < 0.1 else []
    pairs = [(name, value(name, rng)) for name in names for _ in range(rng.choice((1, 1, 1, 3)))]
    query = "&".join(f"{_quoted(name)}={_quoted(text)}" for name, text in pairs)
    if rng.random() < 0.15:
        query = damage(query.encode(), rng).decode("latin-1")
    with session(page, query) as visit:
        return judged(visit)


@cache
def keys_of(session: Callable[..., Session], page: str) -> list[str]:
    """Return the keys of a page's widgets, many of which are parameters of its address."""
    with session(page) as visit:
        return sorted(visit.keys())


def value(name: str, rng: Random) -> str:
    """Return something for a parameter: what it may hold, that with changes, or what nobody expects."""
    true, kind = rng.choice(READ.get(name, ("merged", "all", "0.5", "2"))), rng.random()
    if kind < 0.2:
        return true
    if kind < 0.5:
        return damage(true.encode(), rng).decode("utf-8", "replace")
    if kind < 0.6:
        return json_text(change({"a": [true, 1, None]}, rng), rng)
    return rng.choice(ODD)


def _quoted(text: str) -> str:
    return quote_plus(text.encode("utf-8", "surrogatepass"))


def component(session: Callable[..., Session], rng: Random) -> Outcome:
    """Say things in the name of the app's own components: selections, places of films, signals, ends of uploads."""
    page = rng.choice(("", "", "representations", "representations", "bring"))  # "": the lab
    with session(page) as visit:
        for _ in range(MESSAGES):
            parts = list(visit.all("bidi_component"))
            if not parts:
                return "failed", f"there is no component on the page {page!r}"
            states = [state for _ in range(rng.choice((1, 1, 2))) for state in said(rng.choice(parts), rng)]
            visit.rerun(*states)
            found = judged(visit)
            if only_redacted(visit) and not all(map(parsed, states)):
                return (
                    "refused",
                    "Streamlit parses no such message",
                )  # before the app's script, and for its sender alone
            if found[0] == "failed":
                return found
    return found


def parsed(state: WidgetState) -> bool:
    """Return whether Streamlit can parse what a state holds."""
    text = state.json_value or state.json_trigger_value
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return max(accumulate(text, lambda depth, sign: depth + (sign in "[{") - (sign in "]}"), initial=0)) < DEEP


def only_redacted(visit: Session) -> bool:
    """Return whether a page shows Streamlit's sentence that something went wrong, and no word more."""
    found = [one.inner for one in visit.all("exception")]
    return bool(found) and all("redacted" in one.message and not one.stack_trace and not one.type for one in found)


def said(part: Drawn, rng: Random) -> Iterator[WidgetState]:
    """Yield states that a browser might claim for a component."""
    ident = part.inner.id
    if rng.random() < 0.2:
        text = spoiled([{"event": "ready", "value": True}], rng)
        yield WidgetState(id=f"$$STREAMLIT_INTERNAL_KEY_{ident}__events", json_trigger_value=text)
        return
    data = part.inner.bytes
    content = ""
    if len(data) > 4:
        (size,) = struct.unpack("<I", data[:4])
        content = json.loads(data[4 : 4 + size]).get("content", "")
    film = {"key": content, "frame": rng.choice((0, 1, 5, -1, 10**6, True, 0.5)), "revision": number(rng)}
    yield WidgetState(id=ident, json_value=spoiled({"selection": selection(rng), "film": film}, rng))


def number(rng: Random) -> Any:
    return rng.choice((1, 2, 3, 7, 2**31, 2**53, 2**64, 10**300, -1, 1.5, True, None, "1"))


def selection(rng: Random) -> dict[str, Any]:
    """Return a selection as the script writes it, of rows that there may be or not."""
    if rng.random() < 0.5:
        rows = rng.choice(([], [0], [1, 5, 9], [-1], [10**9], [2**70], list(range(500)), [True, 0.5, None, "1", [1]]))
        return {"revision": number(rng), "ids": rows}
    size = rng.choice((0, 1, 20, 200, 400_000))
    bits = base64.b64encode(rng.randbytes(size) if size < 1000 else b"\xff" * size).decode()
    return {
        "revision": number(rng),
        "bits": damage(bits.encode() or b"=", rng).decode("latin-1") if size < 1000 else bits,
    }


def spoiled(document: Any, rng: Random) -> str:
    """Return a message's text: as it should be, changed, deep, huge or no JSON at all."""
    kind = rng.randrange(10)
    if kind < 3:
        text = json.dumps(document)
    elif kind < 7:
        text = json_text(change(document, rng), rng)
    elif kind == 7:
        text = damage(json.dumps(document).encode(), rng).decode("utf-8", "replace")
    elif kind == 8:
        depth = rng.choice((50, 900, 100_000))
        text = rng.choice(('{"selection":' * depth + "1" + "}" * depth, "[" * depth, '{"selection":' + "[" * depth))
    else:
        text = rng.choice(("", "null", "1", "NaN", '"x"', "[]", "{", "9" * 5000, '{"selection": ' + "9" * 5000 + "}"))
    return text[:LIMIT]


def message(session: Callable[..., Session], rng: Random) -> Outcome:
    """Send bytes that are no message of a browser; the session may be closed, the app goes on for others."""
    with session("learn") as visit:
        true = BackMsg()
        true.rerun_script.query_string = rng.choice(("", "lesson=what-merging-breaks", "a=" + "b" * 1000))
        true.rerun_script.page_name = rng.choice((*PAGES, "", "../app", "x" * 1000))
        true.rerun_script.fragment_id = rng.choice(("", "", "x" * 64))
        for one in list(visit.all())[:5]:
            ident = getattr(one.inner, "id", "")
            true.rerun_script.widget_states.widgets.append(WidgetState(id=ident, string_value=rng.choice(ODD[:20])))
        data = true.SerializeToString()
        for _ in range(MESSAGES):
            other = rng.choice(({"debug_shutdown_runtime": True}, {"stop_script": True}, {"app_heartbeat": True}))
            kind = rng.random()
            sent = damage(data, rng) if kind < 0.8 else BackMsg(**other).SerializeToString()
            try:
                visit.send(sent)
            except ConnectionClosed:
                break
    with session("learn") as after:  # somebody else
        return judged(after) if judged(after)[0] == "failed" else ("refused", "the app went on")


def judged(visit: Session) -> Outcome:
    """Say what a page answered: itself, a sentence, or what it should not."""
    for one in visit.all("exception"):
        return "failed", f"{one.inner.type}: {one.inner.message}"[:300]
    errors = visit.errors
    if unexpected := [text for text in errors if UNEXPECTED in text]:
        return "failed", unexpected[0]
    if "Traceback (most" in visit.text:
        return "failed", "a traceback on the page"
    if not any(visit.all()):
        return "failed", "an empty page"
    told = [*errors, *visit.toasts]
    if long := [text for text in told if not 8 < len(text) < 5000]:
        return "failed", f"a sentence of {len(long[0])} characters: {long[0][:200]!r}"
    return ("refused", told[0][:300]) if told else ("read", "")


VISITS = {"address": address, "component": component, "message": message}
