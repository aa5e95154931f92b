"""MergeLens: the entry point with theme and navigation. What computes is in ``engine/``, what draws in ``pages/``.

``python app.py`` loads what the pages need and then serves the app, so that the first page does not wait for it;
``streamlit run app.py`` does the same the other way round.
"""

import gc
import logging
import os
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from streamlit import config, file_util, runtime

from engine.ending import carry_out
from engine.errors import EngineError
from engine.figures.palette import INK
from engine.manifest import known_zoos, locate_zoo, read_manifest
from engine.service.journal import set_up
from engine.store.people import Settings
from pages.shared.chrome import error_state, theme
from pages.shared.entry import make_the_app_the_entry
from pages.shared.first import first_alone
from pages.shared.guard import Guard
from pages.shared.login import INSECURE, SECRET, ProxyOnly, fault_of_login
from pages.shared.people import let_in
from pages.shared.probes import page_timed, probe_routes
from pages.shared.service import keep_service
from pages.shared.uploads import upload_routes

LENS = """<circle cx="12" cy="16" r="9" fill="#D55E00" fill-opacity=".85"/>
<circle cx="20" cy="16" r="9" fill="#0072B2" fill-opacity=".85"/>"""
ICON = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">{LENS}</svg>'
NAME = 'font-family="system-ui, sans-serif" font-size="20" font-weight="600"'
LOGO = f"""<svg xmlns="http://www.w3.org/2000/svg" width="176" height="32" viewBox="0 0 176 32">{LENS}
<text x="40" y="23" {NAME} fill="{{ink}}">MergeLens</text></svg>"""
FAREWELL = 2  # seconds that connections have to close when the app ends; an unused one would keep it for ever
STYLES = tuple(Path(__file__).parent / "assets" / "theme" / name for name in ("contrast.css", "layout.css"))
LOADED_AHEAD = (  # what the first page imports
    *(
        f"pages.{name}"
        for name in (
            *("features.view", "forms.recipe", "sections.accuracy_bars", "sections.cards", "sections.run_views"),
            *("sections.story", "shared.jobs", "shared.later"),
        )
    ),
    *("engine.zoo.images.readers.parquet", "pyarrow.dataset", "pyarrow.pandas_compat"),
)
SECTIONS = {
    "": (
        ("lab", "Lab", "Merge experts, repair the merged model, see what happened."),
        ("representations", "Representations", "The same images in the features of every state, linked."),
        ("accuracy", "Accuracy", "Accuracy per task and state, and what changed."),
        ("diagnose", "Diagnose", "Why a task loses: seven answers, from the lost images to what helps."),
        ("calibrate", "Calibrate", "How calibrators learned, what they cost, how sure they are."),
        ("salience", "Salience", "Which layers matter to which expert."),
        ("weights", "Weights", "Task vectors, what the merge kept of them, paths between models."),
        ("premerging", "Before merging", "What training and start of the experts do to their merge."),
        ("runs", "Runs", "All runs of this store, and the examples."),
        ("learn", "Learn", "Lessons in short steps: predict, then see what was measured."),
    ),
    "Compare": (
        ("compare", "Compare runs", "Runs side by side: recipes, accuracy, cost."),
        ("sweep", "Sweep", "How the result depends on λ, density, rank, method."),
        ("methods", "Methods", "Every merge method: what it needs, what it measured."),
        ("experiments", "Experiments", "What the papers claim, what you see here, and the controls."),
    ),
    "Zoos": (
        ("zoo", "Zoo", "The zoo's images by class, experts, prompts and licences."),
        ("bring", "Bring your own", "Make a zoo of your own checkpoints."),
    ),
}


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="MergeLens", page_icon=ICON, layout="wide", initial_sidebar_state="auto")
    listed = {
        section: [
            st.Page(f"pages/{name}.py", title=title, help=text, default=name == "lab") for name, title, text in pages
        ]
        for section, pages in SECTIONS.items()
    }
    for style in STYLES:
        st.html(style)
    st.logo(LOGO.format(ink=INK[theme()]), size="medium", icon_image=ICON)
    page = st.navigation(listed, position="top")
    try:
        let_in()
        keep_service()
        with page_timed(page.url_path), first_alone(page.url_path):
            page.run()
    except Exception as error:  # the boundary: whatever happens, people read a sentence, never a traceback
        error_state(error)


def serve() -> None:
    """Serve this file with Streamlit; options after the file name are Streamlit's, and ``--insecure``."""
    import uvicorn
    from streamlit.web import cli

    caching = logging.getLogger("streamlit.runtime.caching.cache_data_api")
    caching.disabled = True  # it would say of every cached function that nothing is served yet
    for name in LOADED_AHEAD:
        import_module(name)
    caching.disabled = False
    for zoo in known_zoos():
        with suppress(EngineError):  # told where somebody opens it
            read_manifest(locate_zoo(zoo.name))
    gc.freeze()  # what is loaded now stays, and is not looked at by every collection
    set_up()
    uvicorn.Config = partial(uvicorn.Config, timeout_graceful_shutdown=FAREWELL)
    if "--insecure" in sys.argv:
        os.environ[INSECURE] = "1"
    sys.argv = ["streamlit", "run", __file__, *(word for word in sys.argv[1:] if word != "--insecure")]
    carry_out(partial(cli.main, prog_name="streamlit"))


def doors() -> list[Middleware]:
    """Return who stands before the app; ends the process where it must not be served as it is set up."""
    settings = Settings.of_environment()
    if fault := fault_of_login(settings, config.get_option("server.address") or ""):
        raise SystemExit(fault)
    proxy = [Middleware(ProxyOnly, secret=os.environ[SECRET])] if settings.login == "headers" else []
    return [guard(), *proxy]


def guard() -> Middleware:
    """Answer only requests of the app's own pages, under the names and the port that it is served under."""
    page = Path(file_util.get_static_dir()) / "index.html"
    port = config.get_option("browser.serverPort") if config.is_manually_set("browser.serverPort") else None
    return Middleware(Guard, hosts=config.get_option("server.allowedHosts"), port=port, page=page)


if runtime.exists():
    main()
elif __name__ == "__main__":
    serve()
else:
    make_the_app_the_entry()
    app = st.App(__file__, routes=[*upload_routes(), *probe_routes()], middleware=doors())
