"""The check of lessons: faults by line, numbers that are still to be measured, and a file that is watched."""

import pytest

from engine.lessons import check_lesson, own_folder, own_lessons, read_lesson, shown
from engine.lessons.check import changes

GOOD = """\
format: 1
name: mine
order: 1
title: Mine
summary: Networks that connect.
run: task-arithmetic
paper: None
steps:
  - title: Half way
    text: "Each is right for {re-basin.ends.ends} %."
    predict:
      question: How accurate half way?
      options: [below 60 %, more]
      value: re-basin.plain.middle
      edges: [60]
      because: [Low., "It is {re-basin.plain.middle} %."]
  - title: Matched
    text: Move it.
    control:
      label: Width
      film: merge.method
      experiment: re-basin
      measures: [barrier]
      presets:
        - {label: "16", point: matched_16}
        - {label: "256", point: matched_256}
  - {title: Three, text: "Merged: {run.average.merged.in} %.", figure: accuracy, states: [pretrained, merged]}
  - {title: Four, text: None, figure: points, experiment: re-basin, measure: middle}
  - {title: Now you, text: Go on.}
"""
TWO = "largest: [re-basin.plain.middle, re-basin.ends.ends]"


@pytest.fixture
def written(tmp_path):
    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return write


def faults(path):
    return [(problem.line, str(problem)) for problem in check_lesson(path)[1] if problem.fault]


def line_of(text, part):
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def test_a_lesson_without_faults_reads_as_its_reader_will_see_it(written):
    lesson, problems = check_lesson(written(GOOD))
    assert problems == []
    text = shown(lesson)
    assert "→ more" in text
    assert "  It is 73.5 %." in text
    assert "16: Loss barrier 0.38" in text
    assert "{" not in text
    assert "[figure: accuracy pretrained merged]" in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("re-basin.plain.middle\n", "re-basin.plan.middle\n", "has no point 'plan'. Did you mean 'plain'?"),
        ("{re-basin.ends.ends}", "{re-bason.ends.ends}", "no experiment 're-bason'. Did you mean 're-basin'?"),
        ("{re-basin.ends.ends}", "{re-basin.ends}", "re-basin does not measure ''"),
        ("{re-basin.ends.ends}", "{ends}", "{ends} names no number"),
        ("{run.average.merged.in}", "{run.average.mergd.in}", "no 'mergd' in the report"),
        ("measures: [barrier]", "measures: [barier]", "Did you mean 'barrier'?"),
        ("point: matched_16", "point: matched_17", "has no point 'matched_17'"),
        ("run: task-arithmetic", "run: task-arithmetik", "Did you mean 'task-arithmetic'?"),
        ("edges: [60]", "edges: [60, 70]", "2 options need 1 edges"),
        ("    text: Move it.", "    txt: Move it.", "Did you mean 'text'?"),
        ("name: mine", "name: yours", "is not the file's name"),
        ("measure: middle", "measure: centre", "does not measure 'centre'"),
        ("states: [pretrained, merged]", "states: [pretrained, mergd]", "'mergd'. Did you mean 'merged'?"),
        ("title: Mine", "title: {", "This is not YAML"),
        ("film: merge.method", "film: merge.methd", "The run has no 'merge.methd'. Did you mean 'merge.method'?"),
        ("title: Matched", 'title: "Matched {re-basin.ends}"', "re-basin does not measure ''"),
        ("title: Mine", "title: 'Mine {run.average.merged.in}'", "{run.average.merged.in} is not filled in here"),
        ("summary: Networks that connect.", "summary: '{re-basin.ends.ends} % connect.'", "is not filled in here"),
        ("label: Width", "label: 'Width {re-basin.ends.ends}'", "is not filled in here"),
        ('label: "256"', 'label: "{re-basin.ends.ends}"', "is not filled in here"),
        ("edges: [60]", "edges: [60]\n      near: 1", "`near` belongs to `largest`"),
        ("value: re-basin.plain.middle", TWO, "`minus` and `edges` belong to a `value`"),
        (
            "value: re-basin.plain.middle\n      edges: [60]",
            f"{TWO}\n      minus: re-basin.ends.ends",
            "`edges` belong",
        ),
    ],
)
def test_a_fault_is_named_with_its_line(written, old, new, said):
    assert GOOD.count(old) == 1
    text = GOOD.replace(old, new)
    found = faults(written(text))
    assert any(said in sentence for _, sentence in found), found
    if "YAML" not in said and not any(name in said for name in ("edges", "near")):
        assert any(number == line_of(text, new.strip()) for number, sentence in found if said in sentence), found


def test_options_and_presets_read_in_the_terminal_as_on_the_page(written):
    text = GOOD.replace("[below 60 %, more]", '["less than {re-basin.plain.middle} %", more]')
    told = shown(check_lesson(written(text))[0]).splitlines()
    assert "    less than 73.5 %" in told
    told = shown(read_lesson("representation-bias")).splitlines()
    assert "   d/32: In-domain accuracy 72.1, Added parameters 8,192" in told


def test_the_name_of_a_lesson_of_the_app_is_taken(written):
    assert (
        "comes with the app"
        in faults(written(GOOD.replace("name: mine", "name: uncertainty"), "uncertainty.yaml"))[0][1]
    )


def test_a_number_that_is_still_to_be_measured_is_no_fault(written, monkeypatch, tmp_path):
    monkeypatch.setattr("engine.lessons.measured.EXPERIMENTS", tmp_path)  # as if no experiment had been run
    text = GOOD.replace("text: Move it.", 'text: "{scaling.at_030.accuracy} %"')
    lesson, problems = check_lesson(written(text))
    assert [(problem.fault, "not been measured yet" in problem.text) for problem in problems] == [(False, True)]
    assert "– %" in shown(lesson)


def test_a_file_is_checked_again_whenever_it_is_written(written):
    path = written(GOOD)
    looks = []

    def pause(seconds):
        looks.append(seconds)
        assert len(looks) < 5
        if len(looks) == 2:
            path.write_text(GOOD + "# more\n", "utf-8")

    seen = changes(path, pause)
    next(seen)
    assert looks == []
    next(seen)
    assert len(looks) == 2


def test_own_lessons_lie_in_the_store_or_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.delenv("MERGELENS_LESSONS", raising=False)
    assert own_folder(tmp_path) == tmp_path / "lessons"
    assert own_lessons(own_folder(tmp_path)) == []
    monkeypatch.setenv("MERGELENS_LESSONS", str(tmp_path / "course"))
    (tmp_path / "course").mkdir()
    for name in ("b.yaml", "a.yml", "notes.txt"):
        (tmp_path / "course" / name).write_text(GOOD)
    assert [path.name for path in own_lessons(own_folder(tmp_path))] == ["a.yml", "b.yaml"]
