"""The person who uses this session: nobody in particular on a laptop; where people log in, somebody with a role."""

import streamlit as st

from engine.store.desk import Desk
from engine.store.people import AT_THE_MACHINE, NotAllowed, Person, Settings, check_allowed, person_of
from pages.shared.chrome import plain
from pages.shared.state import store


def person() -> Person:
    """Return who uses this session.

    Raises:
        NotAllowed: it cannot be told, or they have no role here.
    """
    settings = Settings.of_environment()
    return person_of(st.user.to_dict(), settings) if settings.login else AT_THE_MACHINE


def desk() -> Desk:
    """Return the run table as this session may use it."""
    return Desk(store(), person(), Settings.of_environment())


def let_in() -> None:
    """Draw a way to log in, or why that was in vain, where no person with a role uses this session; ends the page."""
    settings = Settings.of_environment()
    if not settings.login:
        return
    if settings.login == "oidc" and not st.user.is_logged_in:
        st.title("MergeLens", anchor=False)
        st.write("Log in to look at runs and to start your own.")
        st.button("Log in", key="people.login", type="primary", icon=":material/login:", on_click=st.login)
        st.stop()
    try:
        somebody = person()
        check_allowed(somebody, "look")
    except NotAllowed as error:
        st.error(plain(error), icon=":material/error:")
        _leave(settings)
        st.stop()
    with st.sidebar:
        st.caption(plain(f"{somebody.name} · {somebody.role}"))
        _leave(settings)


def _leave(settings: Settings) -> None:
    if settings.login == "oidc":
        st.button("Log out", key="people.logout", icon=":material/logout:", on_click=st.logout)
