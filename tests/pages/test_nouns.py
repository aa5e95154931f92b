"""Figures about images, said of other samples."""

import plotly.graph_objects as go

from engine.figures.drawing import begun
from engine.zoo.modalities import MODALITIES
from pages.shared.nouns import figure_called

TEXT = MODALITIES["text"]


def test_figures_speak_of_the_zoos_samples():
    def drawn():
        bar = go.Bar(name="Another image's shift", x=[1], hovertemplate="%{x} images<extra></extra>")
        return go.Figure(bar, {"xaxis": {"title": {"text": "Share of images"}}})

    figure, same = drawn(), drawn()
    figure_called(figure, TEXT)
    assert figure.data[0].name == "Another text's shift"
    assert figure.data[0].hovertemplate == "%{x} texts<extra></extra>"
    assert figure.layout.xaxis.title.text == "Share of texts"
    figure_called(same, MODALITIES["image"])
    assert same == drawn()


def test_symbols_keep_their_case():
    assert (begun("λ 0.15"), begun("leaving one out"), begun("")) == ("λ 0.15", "Leaving one out", "")
