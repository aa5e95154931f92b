"""The section of the diagnosis that hides words: which of them move the merged model's feature, which the expert's."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine.figures.diagnosis.answer import Scope
from engine.figures.occlusion import frequent_table, occlusion_figure, word_table
from engine.pipeline.views.occlusion import OCCLUSION
from engine.rounding import rounded
from pages.features.words import IMAGES, marked
from pages.shared.chrome import empty_state, figure, theme
from pages.shared.on_demand import view_on_demand
from pages.shared.one_of import one_of
from pages.shared.state import RunView


def occlusion_section(run: RunView, scope: Scope, number: int) -> None:
    """Draw the words that move the feature, over the scope and in one of its texts."""
    st.fragment(_section)(run, scope, number)


def _section(run: RunView, scope: Scope, number: int) -> None:
    with st.container(border=True, key=f"answer-{number}"):
        st.subheader(f"{number} · Which words?", anchor=False)
        if run.report.merged.kind == "per_sample":
            empty_state("No words to hide", "This merge makes other weights for every text.")
            return
        folder = view_on_demand(
            run,
            OCCLUSION,
            OCCLUSION.ask(run.report.recipe, task=scope.task, images=IMAGES),
            key=f"diagnose.words.{scope.task}",
            label="Answer: Which words?",
            icon=":material/troubleshoot:",
            takes=f"Hides every word of up to {IMAGES} texts in turn, in merged model, expert and pretrained model.",
            title=f"{OCCLUSION.title}, {scope.title}",
        )
        if folder is not None:
            _draw(run, scope, OCCLUSION.read(folder)["tasks"][scope.task])


def _draw(run: RunView, scope: Scope, part: Mapping[str, Any]) -> None:
    texts = {text["index"]: text for text in part["texts"] if _is_of(text, scope)}
    if not texts:
        empty_state("None of these texts", f"None of them is among the {part['images']} whose words were hidden.")
        return
    alike = {state: "–" if value is None else rounded(value, 2) for state, value in part["alike"].items()}
    st.write(
        f"Hiding a word moves the merged model's feature where it moves the expert's with r = {alike['merged']} (mean "
        f"over the task's {part['images']} texts); the pretrained model, the control, reaches {alike['pretrained']}."
    )
    said, drawn = st.columns((2, 3), gap="large")
    with said:
        index = st.selectbox(
            "Text",
            list(texts),
            format_func=lambda row: " ".join(texts[row]["words"]),
            key=f"diagnose.words.text.{scope.task}.{scope.label}",
            bind="query-params",
            help="The text whose words are hidden one by one.",
        )
        st.markdown(marked(texts[index]))
        st.caption(
            ":green-background[green] moves the expert's feature most, :orange-background[orange] the merged model's, "
            ":violet-background[violet] both; two words each."
        )
    count = f"{len(texts):,} of {part['available']:,}"
    with drawn:
        shown = one_of(
            "Picture",
            ["This text", "Frequent words"],
            default="This text",
            key="diagnose.words.picture",
            label_visibility="collapsed",
            help="The words of one text, or means over all texts that a word occurs in.",
        )
        if shown == "This text":
            count = f"1 of {part['available']:,}"
            drawing = occlusion_figure(word_table(texts[index]), "", f"words-{scope.task}-{index}", theme())
        else:
            table = frequent_table(list(texts.values()))
            drawing = occlusion_figure(table, "", f"frequent-words-{scope.task}", theme())
        figure(
            drawing,
            key=f"diagnose.words.{drawing.name}",
            run=run,
            unit="1 − cos of the feature with the word and with the mask in its place",
            tasks=[scope.task],
            count=count,
        )


def _is_of(text: Mapping[str, Any], scope: Scope) -> bool:
    if scope.images:
        return text["index"] in scope.images
    return scope.label is None or text["label"] == scope.label
