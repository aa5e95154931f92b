"""The one place where the app reaches into Streamlit, for want of a documented way.

Where a folder named ``pages`` lies beside the main script, a fresh server answers the first address below the root with
the file of that name alone, before the main script has had a chance to say with ``st.navigation`` which pages there
are: that page would lack navigation, title and error boundary. Calling ``st.navigation`` once ends that for the life of
the process, which comes too late for the first address. So the flag that ``st.navigation`` would have set is set here.
"""

import streamlit as st
from streamlit.runtime.pages_manager import PagesManager


def make_the_app_the_entry() -> None:
    """Have Streamlit run the main script whatever address is asked for first; for before the server starts."""
    PagesManager.uses_pages_directory = False


def enter_through_the_app() -> None:
    """Start over with the main script where Streamlit has opened a page by itself, as ``streamlit run`` does."""
    if PagesManager.uses_pages_directory:
        make_the_app_the_entry()
        st.rerun()
