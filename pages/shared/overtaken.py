"""Changes of the browser that wait while a page is still being drawn, and make what is drawn unwanted."""

from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_requests import ScriptRequestType


def overtaken() -> bool:
    """Tell whether another change of this page, or its end, waits until the script that is running has ended.

    Streamlit interrupts a script for this only where the whole page is asked for, not for a part of it.
    """
    context = get_script_run_ctx()
    requests = getattr(context, "script_requests", None)
    return getattr(requests, "_state", ScriptRequestType.CONTINUE) is not ScriptRequestType.CONTINUE
