"""Names of samples in commands, tables and documents."""

import pytest

from engine.commands.runs import _latex as latex_table
from engine.commands.work import summary
from engine.figures.compare import lettered
from engine.figures.document import provenance_html
from engine.figures.exchange import measured, to_latex, to_markdown
from engine.recipe import Recipe
from engine.zoo.modalities import MODALITIES
from engine.zoo.nouns import called, kind_of_zoo
from tests.made_run import made_report

TEXT = MODALITIES["text"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("An image and images of it.", "A text and texts of it."),
        ("Images of an image", "Texts of a text"),
        ("imagenet, imaged", "imagenet, imaged"),
    ],
)
def test_sentences_about_images_are_said_of_texts(said, expected):
    assert called(said, TEXT) == expected
    assert called(said, MODALITIES["image"]) == said


def test_the_kind_is_the_zoos_and_the_usual_one_where_it_is_gone():
    assert kind_of_zoo("mini_text").many == "texts"
    assert kind_of_zoo("mini8").many == "images"
    assert kind_of_zoo("/no/such/zoo").many == "images"


@pytest.mark.parametrize(("zoo", "many"), [("mini_text", "texts"), ("mini8", "images")])
def test_numbers_of_a_run_say_what_they_were_measured_on(zoo, many):
    report = made_report(recipe=Recipe(zoo=zoo))
    (run,) = lettered([("a", "A", report)])
    for text in (summary(report), latex_table(report), measured(run)):
        assert f"{many} a task" in text
    assert f"<h2>{many.capitalize()}</h2>" in provenance_html(report)


@pytest.mark.parametrize(("zoo", "many"), [("mini_text", "texts"), ("mini8", "images")])
def test_warnings_of_a_comparison_say_what_was_scored(zoo, many):
    reports = [made_report(recipe=Recipe(zoo=zoo), split_seed=seed) for seed in (0, 1)]
    runs = lettered((str(number), "A", report) for number, report in enumerate(reports))
    for written in (to_markdown(runs, "merged"), to_latex(runs, "merged")):
        assert f"The scored {many} are not the same ones" in written
