"""Runs side by side, and a run as one file."""

import re

import numpy as np
import pytest

from engine.commands.runs import export
from engine.errors import StoreError
from engine.figures import (
    average_table,
    comparable_states,
    html_document,
    lettered,
    measurement_warnings,
    pareto_figure,
    point_table,
    recipe_differences,
    task_table,
)
from engine.figures.compare import REPAIRED, cost, state_label
from engine.figures.exchange import long_table, to_csv, to_latex, to_markdown
from engine.figures.pareto import pareto_front
from engine.recipe import CalibratorCall, ExpertChoice, MethodCall, Probe, Recipe
from engine.report import Averages, CalibratorPart, MergedPart, SampleCounts, ZooIdentity
from tests.made_run import made_report, write_run

BASE = made_report()


def runs(*reports):
    return lettered((f"id{place}", f"Run {place}", report) for place, report in enumerate(reports))


def recipe(**changes):
    return BASE.recipe.model_copy(update=changes)


def better(**changes):
    """A run whose merged model is five points better on digits."""
    accuracy = {**BASE.accuracy, "merged": {**BASE.accuracy["merged"], "digits": 60.0}}
    average = {**BASE.average, "merged": Averages(within=58.5, out=58.0)}
    return made_report(accuracy=accuracy, average=average, **changes)


class TestRecipes:
    def test_only_what_differs_is_listed(self):
        other = recipe(merge=MethodCall(method="task_arithmetic", params={"scaling": 0.5}))
        table = recipe_differences(runs(BASE, made_report(recipe=other)))
        assert table.to_numpy().tolist() == [["Scaling coefficient λ", "0.3", "0.5"]]
        assert list(table.columns) == ["setting", "A", "B"]

    @pytest.mark.parametrize("field", Recipe.model_fields)
    def test_every_part_of_a_recipe_is_compared(self, field):
        others = {
            "experts": {"experts": (ExpertChoice(name=BASE.experts[0]),)},
            "transforms": {"transforms": (MethodCall(method="lwptv"),)},
            "merge": {"merge": MethodCall(method="ties")},
            "calibrators": {"calibrators": ()},
            "probe": {"probe": Probe(split_seed=9)},
            "seeds": {"seeds": (5,)},
            "forward": {"forward": "linearised"},
        }
        if field == "zoo":
            other = made_report(zoo=ZooIdentity(name="another", digest="f" * 64))
        elif field == "schema_version":
            return  # there is one
        else:
            other = made_report(recipe=recipe(**others[field]))
        assert len(recipe_differences(runs(BASE, other))) > 0

    def test_a_setting_without_effect_is_not_listed(self):
        other = recipe(merge=MethodCall(method="adamerging", params={"plus_plus": False, "density": 0.2, "steps": 9}))
        titles = recipe_differences(runs(BASE, made_report(recipe=other)))["setting"].tolist()
        assert "Steps" in titles
        assert "Density" not in titles

    def test_a_calibrator_that_one_run_lacks_is_one_row(self):
        table = recipe_differences(runs(BASE, made_report(recipe=recipe(calibrators=()))))
        assert table.to_numpy().tolist() == [["Surgery", "Surgery, Rank 4, Training steps 40", "–"]]

    def test_parameters_of_one_calibrator_are_told_apart(self):
        call = CalibratorCall(method="surgery", params={"rank": 8, "steps": 40})
        table = recipe_differences(runs(BASE, made_report(recipe=recipe(calibrators=(call,)))))
        assert table.to_numpy().tolist() == [["Surgery: Rank", "4", "8"]]

    def test_methods_and_choices_have_their_titles(self):
        calls = [
            CalibratorCall(method="interv_merge", name="inside", params={"function": function, "rank": 1}, on=on)
            for function, on in (("noreft", "merged"), ("lobireft", "pretrained"))
        ]
        merges = [MethodCall(method=method) for method in ("ties", "task_arithmetic")]
        probes = [Probe(protocol="paper"), Probe(split_seed=3)]
        made = [
            made_report(recipe=recipe(calibrators=(call,), merge=merge, probe=probe))
            for call, merge, probe in zip(calls, merges, probes, strict=True)
        ]
        assert recipe_differences(runs(*made)).to_numpy().tolist() == [
            ["Merge method", "TIES", "Task Arithmetic"],
            ["Protocol", "paper", "held out"],
            ["Split seed", "0", "3"],
            ["IntervMerge (inside): repairs", "merged", "pretrained"],
            ["IntervMerge (inside): Intervention", "NoReFT", "LobiReFT"],
        ]

    def test_all_experts_are_the_same_as_each_of_them(self):
        named = Recipe(**{**BASE.recipe.model_dump(), "experts": ["digits", "signs"]})
        assert recipe_differences(runs(BASE, made_report(recipe=named))).empty


class TestMeasurement:
    def test_runs_measured_alike_have_no_warning(self):
        assert measurement_warnings(runs(BASE, better())) == []

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"zoo": ZooIdentity(name="made", digest="e" * 64)}, "Different zoos"),
            ({"protocol": "paper"}, "Different protocols: held-out (A), paper (B)"),
            ({"split_seed": 3}, "Different split seeds: 0 (A), 3 (B)"),
            ({"seeds": (0, 1)}, "Different numbers of training seeds: 1 (A), 2 (B)"),
            ({"tasks": {"digits": BASE.tasks["digits"]}}, "Signs, Scenes only in A"),
            ({"tasks": {**BASE.tasks, "scenes": BASE.tasks["signs"]}}, "out-of-domain in another: Scenes"),
        ],
    )
    def test_each_difference_is_said(self, changes, said):
        found = measurement_warnings(runs(BASE, made_report(**changes)))
        assert len(found) == 1
        assert said in found[0]

    def test_other_numbers_of_images_are_named(self):
        samples = {**BASE.samples, "digits": SampleCounts(adapt=8, evaluate=30, available=40)}
        assert measurement_warnings(runs(BASE, made_report(samples=samples))) == [
            "Different numbers of images scored: Digits 12 (A), 30 (B)."
        ]


class TestTables:
    def test_states_and_their_names(self):
        both = runs(BASE, made_report(calibrators={}))
        assert comparable_states(both) == ["merged", REPAIRED, "surgery", "pretrained", "expert"]
        assert state_label(REPAIRED, both) == "Repaired (last calibrator)"
        assert state_label("surgery", both[:1]) == "Surgery"

    def test_tasks_with_differences_to_the_first_run(self):
        table = task_table(runs(BASE, better()), "merged").set_index("task")
        assert table.loc["digits", ["A", "B", "B − A"]].tolist() == [55, 60, 5]
        assert table.loc["scenes", "domain"] == "out"
        assert table.loc["signs", "n"] == "12"

    def test_a_run_without_the_state_has_no_numbers(self):
        bare = made_report(calibrators={}, accuracy={"merged": BASE.accuracy["merged"]})
        table = task_table(runs(BASE, bare), REPAIRED)
        assert list(table["task"]) == ["digits", "signs"]
        assert table["B"].isna().all()
        row = average_table(runs(BASE, bare), REPAIRED).iloc[1]
        assert row["state"] == "none"
        assert np.isnan(row["in"])

    def test_averages_bias_and_cost(self):
        timing = {"merge": 2.0, "surgery": 3.0}
        row = average_table(runs(BASE, made_report(timing_s=timing)), "surgery").iloc[1]
        assert (row["in"], row["in_delta"], row["parameters"], row["seconds"]) == (76, 0, 128, 5)
        assert row["l1"] == pytest.approx(0.35)

    def test_means_over_other_tasks_are_not_subtracted(self):
        fewer = made_report(tasks={"digits": BASE.tasks["digits"]}, accuracy={"merged": {"digits": 60.0}})
        row = average_table(runs(BASE, fewer), "merged").iloc[1]
        assert np.isnan(row["in_delta"])
        assert row["in"] == 56

    def test_masks_count_and_calibrators_on_the_pretrained_model_do_not_pay_for_merging(self):
        part = CalibratorPart(method="surgery", on="pretrained", parameters=10)
        report = made_report(
            merged=MergedPart(kind="per_task", extra_parameters=5, extra_bits=64),
            calibrators={"surgery": part},
            timing_s={"merge": 4.0, "surgery": 1.0},
        )
        assert cost(report, "merged") == (7, 4)
        assert cost(report, "surgery") == (10, 1)

    def test_at_most_six_runs_take_part(self):
        assert [run.letter for run in runs(*[BASE] * 8)] == list("ABCDEF")


class TestPareto:
    def test_the_front(self):
        x, y = np.array([1.0, 2, 3, 3, 1]), np.array([3.0, 2, 1, 1, 1])
        assert pareto_front(x, y, True).tolist() == [True, True, True, True, False]
        assert pareto_front(x, y, False).tolist() == [True, False, False, False, False]

    def test_reference_states_are_never_on_it(self):
        table = point_table(runs(BASE, better()), "out").set_index(["run", "state"])
        assert table["front"].to_dict() == {
            ("A", "pretrained"): False,
            ("A", "merged"): True,
            ("B", "pretrained"): False,
            ("B", "merged"): True,
        }

    def test_runs_on_other_images_do_not_compete(self):
        worse = made_report(average={"merged": Averages(within=10.0, out=10.0)})
        assert not point_table(runs(BASE, worse), "out").iloc[-1]["front"]
        apart = worse.model_copy(update={"split_seed": 9})
        assert point_table(runs(BASE, apart), "out").iloc[-1]["front"]

    def test_equal_points_share_a_mark(self):
        drawing = pareto_figure(runs(BASE, BASE), "parameters", "dark")
        merged = next(trace for trace in drawing.figure.data if trace.name == "Merged")
        assert list(merged.text) == ["<b>A, B</b>"]
        assert "A Surgery 76.0 %" in drawing.alt

    def test_letters_of_the_rightmost_marks_stand_on_the_left(self):
        traces = pareto_figure(runs(BASE, better()), "out", "light").figure.data
        sides = {x: side for trace in traces if trace.text for x, side in zip(trace.x, trace.textposition, strict=True)}
        assert sides[max(sides)] == "middle left"
        assert sides[min(sides)] == "middle right"

    def test_nothing_to_draw(self):
        assert "none" in pareto_figure(runs(BASE), "seconds", "light").alt


class TestExchange:
    def test_csv_says_what_was_measured(self):
        table = long_table(runs(BASE, better(protocol="paper")), "merged").set_index(["run", "task", "domain"])
        assert table.loc[("B", "digits", "in"), "difference"] == 5
        assert table.loc[("B", "(mean)", "in"), "accuracy"] == 58.5
        assert set(table.loc["B"]["protocol"]) == {"paper"}
        assert to_csv(runs(BASE, BASE), "merged").startswith("run,id,title,zoo,zoo_digest,protocol")

    def test_markup_is_text(self):
        named = lettered([("a", "a|b_{x}", BASE), ("b", "50 % λ & <i>", made_report(split_seed=1))])
        markdown, latex = to_markdown(named, "merged"), to_latex(named, "merged")
        assert r"a\|b\_{x}" in markdown
        assert "Not measured alike" in markdown
        assert "| Digits | 55.0 | 55.0 (+0.0) |" in markdown
        assert r"a\textbar{}b\_\{x\}" in latex
        assert r"50 \% $\lambda$ \& \textless{}i\textgreater{}" in latex
        assert latex.count(r"\\") == 1 + len(task_table(named, "merged")) + 3


class TestDocument:
    @pytest.fixture
    def folder(self, tmp_path):
        return write_run(tmp_path / "run", made_report(warnings=("<b>careful</b>",)), projections=())

    def test_it_loads_nothing(self, folder):
        page = html_document(folder)
        own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
        assert not re.search(r"(src|href|action)\s*=|url\(|@import|<(img|iframe|link|object)", own, re.IGNORECASE)
        assert "default-src 'none'" in own
        assert not re.search(r"<script[^>]*\ssrc\s*=", page)
        assert page.count("plotly.js v") == 1

    def test_names_are_escaped(self, tmp_path):
        tasks = {**BASE.tasks, "digits": BASE.tasks["digits"].model_copy(update={"title": "</script><script>x()"})}
        folder = write_run(tmp_path / "run", made_report(tasks=tasks, warnings=("<b>careful</b>",)), projections=())
        page = html_document(folder, "<script>alert(1)</script>")
        assert "<script>alert(1)" not in page
        assert "<script>x()" not in page
        assert "<title>&lt;script&gt;alert(1)" in page
        assert "&lt;b&gt;careful" in page

    def test_it_holds_numbers_recipe_and_provenance(self, folder):
        page = html_document(folder)
        for part in (
            "56.0 %",
            "method: task_arithmetic",
            "f" * 64,
            "0" * 64,
            "held-out:",
            "Salience of layers",
            "How the calibrators learned",
            "prefers-color-scheme",
        ):
            assert part in page

    def test_a_run_of_weights_only(self, tmp_path):
        bare = made_report(
            accuracy={},
            average={},
            bias={},
            salience=None,
            calibrators={},
            tasks={},
            samples={},
            recipe=recipe(calibrators=(), probe=Probe()),
        )
        (tmp_path / "report.json").write_text(bare.model_dump_json(by_alias=True))
        page = html_document(tmp_path)
        assert "The run has no accuracies" in page
        assert len(page) < 50_000

    def test_it_is_exported_by_the_command_line(self, folder, tmp_path):
        export(str(folder), tmp_path / "report.html")
        assert (tmp_path / "report.html").read_text("utf-8") == html_document(folder)

    def test_a_folder_without_a_report(self, tmp_path):
        with pytest.raises(StoreError, match="no report"):
            html_document(tmp_path)
