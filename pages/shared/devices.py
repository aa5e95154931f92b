"""The devices that compute and their memory, from the engine's heartbeat."""

import streamlit as st

from engine.service.client import service_state
from engine.service.devices import Device
from pages.shared.chrome import plain
from pages.shared.state import store

TICK = 5.0


def device_panel() -> None:
    """Draw engine, workers and a line for each device; looks again while it is open."""
    part = st.expander("Engine and devices", icon=":material/memory:", key="devices", on_change="rerun")
    if part.open:
        with part:
            st.fragment(_devices, run_every=TICK)()


def _devices() -> None:
    state = service_state(store())
    busy = f" At work on {state.busy} run{'s' * (state.busy != 1)}." if state.busy else ""
    st.caption(plain(f"{state.message}{busy}"))
    for device in state.devices:
        _device(device)
    if any(device.accelerator for device in state.devices):
        st.caption("Encoders compute on the accelerator, in half precision on CUDA; features are kept in float32.")


def _device(device: Device) -> None:
    dtype = f" · encoders in {device.dtype}" if device.dtype else ""
    name = f"**{plain(device.name)}** {plain(device.title)}{dtype}"
    if not device.total:
        st.markdown(name)
        return
    own = f", {_gib(device.own)} of it by MergeLens" if device.own else ""
    text = f"{name} · {_gib(device.used)} of {_gib(device.total)} used{own}"
    st.progress(min(max(device.used / device.total, 0.0), 1.0), text=text)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
