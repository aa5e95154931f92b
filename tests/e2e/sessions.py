"""A session of the app without a browser: Streamlit's messages over a WebSocket, kept as its front end keeps them."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.Element_pb2 import Element
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.sync.client import connect

XSRF = "_streamlit_xsrf"
WHOLE, PART = ForwardMsg.FINISHED_SUCCESSFULLY, ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody: sessions come over loopback, without TLS
TEXTS = ("markdown", "heading", "alert", "text")


@dataclass(frozen=True)
class Drawn:
    """An element on the page."""

    run: str  # of the script, which drew it
    fragment: str  # that it belongs to; empty for none
    element: Element

    @property
    def kind(self) -> str:
        """Return its kind, such as ``button``."""
        return self.element.WhichOneof("type") or ""

    @property
    def inner(self) -> Any:
        """Return what is sent of its kind."""
        return getattr(self.element, self.kind)


class Session:
    """One visitor: what the page shows now, and ways to act on it; ``with`` ends the visit."""

    patience = 120.0  # seconds that an answer is waited for

    def __init__(self, address: str, path: str = "", query: str = "", cookies: Mapping[str, str] | None = None) -> None:
        """Visit a page.

        Args:
            address: of the app, with its scheme.
            path: of the page below it.
            query: parameters of the address, as they stand after ``?``.
            cookies: of a browser that has logged in.
        """
        cookies = dict(cookies or {})
        with httpx.Client(timeout=self.patience, cookies=cookies, trust_env=False, verify=PLAIN) as browser:
            browser.get(f"{address}/_stcore/health").raise_for_status()
            kept = {cookie.name: cookie.value or "" for cookie in browser.cookies.jar}
        self.bytes = 0  # received
        self.toasts: list[str] = []  # all that were shown
        self.query = query
        self._page_name, self._page, self._run = path, "", ""
        self._drawn: dict[tuple[int, ...], Drawn] = {}
        self._told: dict[str, WidgetState] = {}
        self._kept: dict[str, ForwardMsg] = {}  # long messages by their digest; sent once
        self._due: dict[str, tuple[float, float]] = {}  # fragment → interval, moment of its next run
        self._fragments: Iterable[str] = ()
        self._socket = connect(
            f"ws://{urlsplit(address).netloc}/_stcore/stream",
            origin=address,
            subprotocols=["streamlit", kept[XSRF]],
            additional_headers={"Cookie": "; ".join(f"{name}={value}" for name, value in kept.items())},
            max_size=None,
            open_timeout=self.patience,
            ping_interval=None,
            proxy=None,
        )

    def __enter__(self) -> Session:
        return self.rerun()

    def __exit__(self, *reason: object) -> None:
        self._socket.close()

    def rerun(self, *states: WidgetState, fragment: str = "") -> Session:
        """Have the script run, with what widgets are told now and were told before, and wait for its end."""
        state = ClientState(query_string=self.query, page_script_hash=self._page, fragment_id=fragment)
        state.page_name = self._page_name if not self._page else ""
        state.widget_states.widgets.extend([*self._told.values(), *states])
        state.cached_message_hashes.extend(self._kept)
        self.send(BackMsg(rerun_script=state).SerializeToString())
        return self._follow(fragment)

    def send(self, message: bytes) -> None:
        """Send bytes, whatever they are."""
        self._socket.send(message)

    def click(self, key: str) -> Session:
        """Press a button, whether a browser would let one or not."""
        found = self.widget(key)
        return self.rerun(WidgetState(id=found.inner.id, trigger_value=True), fragment=found.fragment)

    def tell(self, key: str, **value: Any) -> Session:
        """Set a widget, such as ``tell("runs.search", string_value="a")``."""
        found = self.widget(key)
        self._told[found.inner.id] = WidgetState(id=found.inner.id, **value)
        return self.rerun(fragment=found.fragment)

    def go(self, path: str) -> Session:
        """Go to another page of the app by its link."""
        self._page_name, self._page, self.query = path, "", ""
        return self.rerun()

    def rest(self, seconds: float) -> Session:
        """Do nothing for a while but what the page does by itself: fragments that run again and again."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            late = [name for name, (_, moment) in self._due.items() if moment <= now]
            for name in late:
                self._due[name] = (self._due[name][0], now + self._due[name][0])
                with contextlib.suppress(TimeoutError):  # it may have ended meanwhile, and is not answered then
                    self._ask_fragment(name)
            wait = min([until, *(moment for _, moment in self._due.values())]) - time.monotonic()
            self._take_in(max(wait, 0.0))
        return self

    def all(self, kind: str = "") -> Iterator[Drawn]:
        """Return what is drawn, of one kind or of all."""
        return (found for found in list(self._drawn.values()) if not kind or found.kind == kind)

    def widget(self, key: str) -> Drawn:
        """Return the widget that a script calls by a key."""
        for found in self.all():
            if getattr(found.inner, "id", "").endswith(f"-{key}"):
                return found
        raise LookupError(f"{key} is not on the page; there are: {', '.join(self.keys())}")

    def keys(self) -> list[str]:
        """Return the keys of all widgets."""
        names = (getattr(found.inner, "id", "") for found in self.all())
        return [name.split("-", 2)[-1] for name in names if name.startswith("$$ID")]

    @property
    def text(self) -> str:
        """Return all text of the page."""
        return "\n".join(found.inner.body for found in self.all() if found.kind in TEXTS)

    @property
    def errors(self) -> list[str]:
        """Return what is shown as an error, and exceptions."""
        alerts = [one.inner.body for one in self.all("alert") if one.inner.format == one.inner.ERROR]
        return alerts + [one.inner.message for one in self.all("exception")]

    def _ask_fragment(self, name: str) -> None:
        self.send(BackMsg(rerun_script=self._auto(name)).SerializeToString())
        self._follow(name, 2.0)

    def _auto(self, fragment: str) -> ClientState:
        state = ClientState(query_string=self.query, page_script_hash=self._page, fragment_id=fragment)
        state.is_auto_rerun = True
        state.widget_states.widgets.extend(self._told.values())
        return state

    def _follow(self, fragment: str, seconds: float = 0.0) -> Session:
        """Take messages in until a run of the script, or of a fragment, that starts from now on has ended."""
        started, until = False, time.monotonic() + (seconds or self.patience)
        while True:
            message = self._next(until - time.monotonic())
            kind = message.WhichOneof("type")
            started = started or kind == "new_session"
            ended = message.script_finished if started and kind == "script_finished" else None
            if ended == WHOLE or (ended == PART and fragment in self._fragments):
                return self

    def _take_in(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            while True:
                self._next(until - time.monotonic())

    def _next(self, seconds: float) -> ForwardMsg:
        data = self._socket.recv(timeout=max(seconds, 0.0))
        self.bytes += len(data)
        message = ForwardMsg.FromString(data)
        kind = message.WhichOneof("type")
        if kind == "ref_hash":
            kept = ForwardMsg()
            kept.CopyFrom(self._kept[message.ref_hash])
            kept.metadata.CopyFrom(message.metadata)
            message, kind = kept, kept.WhichOneof("type")
        elif message.metadata.cacheable:
            self._kept[message.hash] = message
        if taken := getattr(self, f"_on_{kind}", None):
            taken(message)
        return message

    def _on_new_session(self, message: ForwardMsg) -> None:
        run = message.metadata.run
        self._run, self._fragments = run.script_run_id, list(run.fragment_ids)
        if not self._fragments:
            self._due.clear()

    def _on_delta(self, message: ForwardMsg) -> None:
        path = tuple(message.metadata.delta_path)
        if message.delta.WhichOneof("type") == "new_element":
            if message.delta.new_element.WhichOneof("type") == "toast":
                self.toasts.append(message.delta.new_element.toast.body)
            self._drawn[path] = Drawn(self._run, message.delta.fragment_id, message.delta.new_element)

    def _on_script_finished(self, message: ForwardMsg) -> None:
        """Forget what the run that has ended did not draw again."""
        if message.script_finished not in (WHOLE, PART):
            return
        for path, found in list(self._drawn.items()):
            concerned = found.fragment in self._fragments if message.script_finished == PART else True
            if concerned and found.run != self._run:
                del self._drawn[path]

    def _on_navigation(self, message: ForwardMsg) -> None:
        self._page = message.navigation.page_script_hash

    def _on_page_info_changed(self, message: ForwardMsg) -> None:
        self.query = message.page_info_changed.query_string

    def _on_auto_rerun(self, message: ForwardMsg) -> None:
        found = message.auto_rerun
        self._due[found.fragment_id] = (found.interval, time.monotonic() + found.interval)

    def _on_stop_auto_rerun(self, message: ForwardMsg) -> None:
        for name in message.stop_auto_rerun.fragment_ids:
            self._due.pop(name, None)
