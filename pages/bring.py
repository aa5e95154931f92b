"""Bring your own: checkpoints, images or texts, classes, check, first run; all of it in the browser."""

import streamlit as st

from pages.sections import bring_data, bring_files
from pages.sections import bring_draft as draft
from pages.sections.bring_check import check_step
from pages.sections.bring_classes import class_step, words
from pages.sections.bring_first_run import first_run, followed, import_progress
from pages.shared.chrome import empty_state
from pages.shared.nouns import called

STEP = "bring.step"
STEPS = {"models": "1 Models", "images": "2 Images", "classes": "3 Classes", "check": "4 Check", "run": "5 First run"}
INTRO = """Checkpoints and data become a zoo: whole pickled modules, Hugging Face folders of image and text models, LoRA
adapters, open_clip files; images in folders, parquet or NumPy, texts in JSON lines, CSV or parquet. Nothing in a file
is ever executed."""


def main() -> None:
    """Draw the steps and the one that is open."""
    draft.remember()
    st.title("Bring your own", anchor=False)
    made = followed()
    if made is not None and made.state == "finished":
        _steps("run")
        first_run(made)
        return
    if made is not None:
        _steps("check")
        import_progress(made)
        return
    st.write(INTRO)
    draft.take_uploaded()
    step = _steps(None)
    DRAW[step]()
    _further(step)


def _steps(only: str | None) -> str:
    """Draw the steps; while an import is followed there is only one to be at."""
    if only is not None:
        st.session_state[STEP] = only
    elif st.session_state.get(STEP) == "run":
        st.session_state[STEP] = "check"  # there is no zoo yet that could be run
    elif st.session_state.get(STEP) not in STEPS:
        st.session_state[STEP] = "models"
    kind = draft.kind()
    titles = {name: called(title, kind) for name, title in STEPS.items()}
    return st.segmented_control(
        "Step",
        list(STEPS),
        format_func=titles.__getitem__,
        key=STEP,
        required=True,
        disabled=only is not None,
        label_visibility="collapsed",
        help="Every step can be left and come back to; the first run follows when the zoo has been made.",
    )


def _models() -> None:
    bring_files.sources()
    if draft.models():
        bring_files.chosen_files()
    else:
        empty_state(
            "Nothing chosen yet",
            "Add a pretrained base and the models fine-tuned from it. Of image models, heads are optional: where the "
            "base has its text encoder they are built from class names. Text models bring classifiers and tokenizer: "
            "choose whole folders.",
        )


def _images() -> None:
    bring_data.sources()
    bring_data.chosen_images()


def _further(step: str) -> None:
    """Offer the next step, and the one before."""
    order = list(STEPS)[:-1]
    place = order.index(step)
    with st.container(horizontal=True):
        if place:
            st.button("Back", key="bring.previous", on_click=_go, args=(order[place - 1],))
        if place + 1 < len(order):
            st.button(
                "Continue",
                key="bring.next",
                type="primary",
                icon=":material/arrow_forward:",
                disabled=not draft.models(),
                on_click=_go,
                args=(order[place + 1],),
            )


def _go(step: str) -> None:
    st.session_state[STEP] = step


DRAW = {"models": _models, "images": _images, "classes": class_step, "check": lambda: check_step(words())}

main()
