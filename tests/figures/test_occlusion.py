"""Words that move the feature, as tables and bars."""

import pytest

from engine.figures.occlusion import frequent_table, most_moving, occlusion_figure, word_table

TEXT = {
    "words": ["not", "good", "here"],
    "expert": [0.6, 0.3, 0.0],
    "merged": [0.0, 0.5, 0.1],
    "pretrained": [0.0, 0.4, 0.0],
}


def test_a_word_has_a_row_with_its_place_and_every_states_distance():
    table = word_table(TEXT)
    assert table["place"].tolist() == [1, 2, 3]
    assert table["expert"].tolist() == [0.6, 0.3, 0.0]


def test_the_most_moving_words_come_first_and_still_ones_are_left_out():
    assert most_moving(TEXT, "expert") == [0, 1]
    assert most_moving(TEXT, "merged") == [1, 2]
    assert most_moving(TEXT, "pretrained") == [1]


def test_words_of_several_texts_are_averaged_by_state():
    other = {"words": ["not", "bad"], "expert": [0.2, 0.9], "merged": [0.2, 0.9], "pretrained": [0.0, 0.1]}
    table = frequent_table([TEXT, TEXT, other]).set_index("word")
    assert list(table.index) == ["not"]  # the others occur less than three times
    assert table.loc["not", "expert"] == pytest.approx((0.6 + 0.6 + 0.2) / 3)
    assert table.loc["not", "occurrences"] == 3


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_bars_are_drawn_for_every_state_and_name_the_word(theme):
    drawing = occlusion_figure(word_table(TEXT), "", "words", theme)
    assert [bar.name for bar in drawing.figure.data] == ["Expert", "Merged", "Pretrained"]
    assert list(drawing.figure.layout.yaxis.ticktext) == ["not", "good", "here"]
    assert "expert “not” (0.60)" in drawing.alt
    assert "merged “good” (0.50)" in drawing.alt


def test_no_frequent_word_draws_an_empty_figure():
    lonely = [{**TEXT, "words": [f"{name}{word}" for word in TEXT["words"]]} for name in ("a", "b", "c")]
    drawing = occlusion_figure(frequent_table(lonely), "", "words", "light")
    assert drawing.table.empty
