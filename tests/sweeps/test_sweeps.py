"""Places, values and tables of sweeps, without anything computed."""

import pytest

from engine.catalog import resolve
from engine.errors import RecipeError, StoreError
from engine.figures import sweep_curves, sweep_map
from engine.pipeline.preflight.estimate import quick_estimate
from engine.pipeline.preflight.sweep import estimate_sweep
from engine.recipe import parse_recipe
from engine.report import Averages
from engine.store import Store
from engine.sweeps import (
    SweepPoint,
    SweepRequest,
    SweepTable,
    parse_setting,
    place_title,
    places,
    read_table,
    set_place,
)
from engine.sweeps.frames import frames_of
from engine.sweeps.grid import parse_values

VAST = ("a=0:1e999999:1e-999999", "a=0:1:1e-999999", "a=0:1e999999:1e999999", "a=1e9999999999999999999:1:1")


def request(*settings, **changes):
    listed = [{"place": place, "values": values} for place, values in settings]
    return SweepRequest.parse({"recipe": changes, "settings": listed})


def test_a_frame_of_other_images_is_refused():
    recipe = resolve(parse_recipe({}))
    same, other = frames_of(recipe, "probe.split_seed", [0, 1], [])
    assert same.recipe == recipe
    assert other.recipe is None
    assert other.refused == (
        "The value 1 changes what stands still; a film shows the same images beside the same experts in every frame; "
        "vary this in a sweep."
    )
    with pytest.raises(RecipeError, match="The value mini_text changes what stands still"):
        frames_of(recipe, "zoo", ["mini_text"], [])


def test_experts_join_where_a_method_takes_their_weights():
    """An expert that is left out of the recipe would take its task's images with it, so it has weight 0."""
    experts = [("digits", 1.0), ("signs", 0.5)]
    found = frames_of(resolve(parse_recipe({})), "experts", [0, 1, 2], experts)
    assert [[expert.name for expert in frame.recipe.experts] for frame in found] == [["digits", "signs"]] * 3
    assert [[expert.weight for expert in frame.recipe.experts] for frame in found] == [[0, 0], [1, 0], [1, 0.5]]
    average = resolve(parse_recipe({"merge": {"method": "weight_average"}}))
    with pytest.raises(RecipeError, match=r"No frame .*Weight [Aa]verag.* takes no weights of single experts"):
        frames_of(average, "experts", [1, 2], [("digits", 1.0), ("signs", 1.0)])


def test_settings_of_a_sweep():
    assert parse_setting("a.b=1:7:3") == ("a.b", [1, 4, 7])
    assert parse_setting("a=0.1:0.3:0.1")[1] == pytest.approx([0.1, 0.2, 0.3])
    assert parse_setting("merge.method=ties,tsv_m")[1] == ["ties", "tsv_m"]
    assert parse_values("1e-4, 2, true,") == [1e-4, 2, True]
    for wrong in ("a", "a=", "a=1:0:1", "a=0:1:0", "a=x:y:z", "a=0:1:0.0001", "a=0:inf:1", "a=[1", *VAST):
        with pytest.raises(RecipeError):
            parse_setting(wrong)
    for wrong in ("a=0.1:0.5", "a=1:5", "a=0.1:0.3:0.1,0.5", "a=0.1:0.2,0.5", "a=0:1:0.1:2"):
        with pytest.raises(RecipeError, match="is no range of numbers; write it as start:stop:step"):
            parse_setting(wrong)
    assert parse_setting("zoo=hf:owner/name")[1] == ["hf:owner/name"]
    with pytest.raises(RecipeError, match="Did you mean 'merge'"):
        set_place({"merge": {"params": {}}}, "merg.params.scaling", 1)


def test_another_method_keeps_what_it_has():
    points = request(
        ("merge.params.scaling", [0.2, 0.4]),
        ("merge.method", ["ties", "task_arithmetic"]),
        merge={"method": "ties", "params": {"density": 0.4}},
    ).points()
    assert [point.recipe.merge.params["scaling"] for point in points] == [0.2, 0.2, 0.4, 0.4]
    assert [point.recipe.merge.params.get("density") for point in points] == [0.4, None, 0.4, None]
    assert points[0].title == "Scaling coefficient λ 0.2, Merge method TIES"


def test_a_method_without_the_parameter_is_refused_by_name():
    asked = request(("merge.method", ["weight_average"]), ("merge.params.scaling", [0.2]))
    with pytest.raises(RecipeError, match=r"Weight Averaging.*scaling"):
        asked.points()


@pytest.mark.parametrize("value", ["[ties]", "{ties: 1}", "[[ties]]"])
def test_a_list_is_no_method(value):
    place, values = parse_setting(f"merge.method={value}")
    with pytest.raises(RecipeError, match=r"merge\.method"):
        request((place, values), merge={"method": "ties"}).points()


def test_a_value_is_taken_once():
    assert request(("merge.params.scaling", [0.1, 0.1, 0.2])).count() == 2


def test_places_come_from_the_catalog_with_bounds():
    recipe = resolve(
        parse_recipe(
            {
                "merge": {"method": "ties"},
                "transforms": [{"method": "lwptv"}],
                "calibrators": [{"method": "surgery"}, {"name": "wide", "method": "surgery"}],
            }
        )
    )
    found = {place.place: place for place in places(recipe)}
    assert (found["merge.params.scaling"].low, found["merge.params.scaling"].kind) == (-2, "number")
    assert found["calibrators.1.params.rank"].kind == "whole"
    assert found["calibrators.1.params.rank"].title == "Surgery (wide): Rank"
    assert found["transforms.0.params.eta"].low == 0
    assert "tsv_m" in found["merge.method"].choices
    assert all(place.value == place.value for place in found.values())
    assert place_title(recipe, "calibrators.wide.params.rank") == "Surgery (wide): Rank"
    assert place_title(recipe, "seeds") == "seeds"
    for place in found.values():  # every place offered can be set to what it holds
        set_place(recipe.model_dump(mode="json"), place.place, place.value)


def table(*choices, split="validation"):
    points = tuple(
        SweepPoint(
            number=n,
            values=(n / 10,),
            title=f"λ {n / 10}",
            run="ab" * 32,
            evaluation={"merged": Averages(within=90.0 - n)},
            choice={} if c is None else {"merged": c},
        )
        for n, c in enumerate(choices)
    )
    return SweepTable(places=("merge.params.scaling",), titles=("λ",), points=points, split=split)


def test_the_best_is_the_first_with_the_highest_choice_and_never_by_evaluation():
    assert table(50.0, 70.0, 70.0).best("merged").number == 1
    assert table(None, None).best("merged") is None
    rows = table(50.0, 70.0).rows()
    assert [row["best"] for row in rows] == [False, True]
    assert [row["in"] for row in rows] == [90.0, 89.0]
    assert table(50.0).to_csv().splitlines()[0].endswith("recovered,validation_in,best,failed")


def test_a_sweep_that_is_not_there_is_explained(tmp_path):
    with pytest.raises(StoreError, match="no sweep"):
        read_table(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(StoreError, match="another form"):
        read_table(tmp_path)


def test_curves_mark_the_best_by_choice_not_by_what_is_drawn():
    drawing = sweep_curves(table(50.0, 70.0, 60.0), "in", "light")
    line, mark = drawing.figure.data
    assert list(line.y) == [90.0, 89.0, 88.0]
    assert list(mark.x) == [0.1]
    assert "best λ 0.1 with 89.0 %" in drawing.alt
    assert list(drawing.table["best"]) == [False, True, False]
    assert len(sweep_curves(table(None, None), "in", "dark").figure.data) == 1


def test_a_grid_is_a_map_with_a_frame_around_the_best():
    points = tuple(
        SweepPoint(
            number=n,
            values=(row, column),
            title=f"{row} {column}",
            run="ab" * 32,
            evaluation={"merged": Averages(within=10.0 * n)},
            choice={"merged": -float(n)},
        )
        for n, (row, column) in enumerate([(1, "a"), (1, "b"), (2, "a")])
    )
    failed = SweepPoint(number=3, values=(2, "b"), title="2 b", failed="No.")
    grid = SweepTable(places=("x", "y"), titles=("X", "<Y>"), points=(*points, failed), split="validation")
    drawing = sweep_map(grid, "merged", "in", "light")
    heat, frame = drawing.figure.data[0], drawing.figure.layout.shapes[0]
    assert [list(row) for row in heat.z] == [[0.0, 10.0], [20.0, None]]
    assert (frame.x0, frame.y0) == (-0.5, -0.5)
    assert drawing.figure.layout.xaxis.title.text == "&lt;Y&gt;"
    assert len(drawing.table) == 4


def test_what_runs_share_is_counted_once(tmp_path):
    store = Store(tmp_path)
    surgery = [{"method": "surgery"}]
    one = estimate_sweep(request(("merge.params.scaling", [0.1]), calibrators=surgery), store)
    merges = estimate_sweep(request(("merge.params.scaling", [0.1, 0.2, 0.3]), calibrators=surgery), store)
    ranks = estimate_sweep(request(("calibrators.surgery.params.rank", [4, 8, 16]), calibrators=surgery), store)
    assert (merges.runs, merges.merges, ranks.runs, ranks.merges) == (3, 3, 3, 1)
    assert one.seconds < ranks.seconds < merges.seconds < 3 * one.seconds


@pytest.mark.parametrize(
    ("place", "values", "merges"),
    [
        ("merge.method", ["weight_average", "twin", "adamerging"], 3),
        ("calibrators.surgery.params.steps", [10, 100_000], 1),
        ("probe.samples_per_task", [10, "all", 20], 1),
        ("probe.split_seed", [0, 1], 1),
    ],
)
def test_every_run_of_a_sweep_is_estimated_in_whatever_order(tmp_path, place, values, merges):
    store = Store(tmp_path)
    asked = request((place, values), calibrators=[{"method": "surgery"}])
    found = estimate_sweep(asked, store)
    assert found == estimate_sweep(request((place, values[::-1]), calibrators=[{"method": "surgery"}]), store)
    alone = [quick_estimate(point.recipe, store) for point in asked.points()]
    assert max(run.seconds for run in alone) <= found.seconds < sum(run.seconds for run in alone)
    assert max(run.disk_bytes for run in alone) <= found.disk_bytes < sum(run.disk_bytes for run in alone)
    assert found.merges == merges
