"""All views of a run: the list that pages offer, the time that each is foreseen to take, and the command."""

import pytest
import sqlalchemy as sa

from engine.pipeline.local import run_recipe
from engine.pipeline.offered import offered_views
from engine.pipeline.preflight.views import foresee
from engine.pipeline.rates import keep_rates
from engine.pipeline.views import all_views
from engine.pipeline.views.blame import BLAME
from engine.pipeline.views.coverage import COVERAGE
from engine.pipeline.views.film import FILM
from engine.pipeline.views.geometry import GEOMETRY
from engine.pipeline.views.interpolation import INTERPOLATION
from engine.recipe import parse_recipe
from engine.store import Store
from engine.store.tables import run as run_table
from tests.tiny_zoo import make_zoo


@pytest.fixture(scope="module")
def made(zoo, tmp_path_factory):
    """A store with a run that has a calibrator without any spread, its id and its recipe."""
    store = Store(tmp_path_factory.mktemp("store"))
    calibrators = [{"method": "surgery", "params": {"steps": 3, "rank": 2}}]
    recipe = parse_recipe({"zoo": str(zoo), "merge": {"method": "task_arithmetic"}, "calibrators": calibrators})
    report = run_recipe(recipe, store)
    return store, store.runs.list(kinds=("run",), limit=1)[0].id, report


@pytest.fixture
def typed(command, made, monkeypatch):
    monkeypatch.setenv("MERGELENS_STORE", str(made[0].root))
    return lambda *arguments: command("views", made[1], "-q", *arguments)


def test_views_of_a_run_are_computed_once_and_one_that_cannot_be_leaves_the_others(typed, made):
    store = made[0]
    names = ("weights", "coverage", "direction")
    only = [part for name in names for part in ("--only", name)]
    told = typed(*only, "--foreseen")
    assert told.code == 0
    assert "Weights view: about" in told.out
    assert not store.runs.list(kinds=names), "they are only foreseen"
    made_now = typed(*only)
    assert made_now.code == 0
    assert "Coverage of predicted spreads: not computed. No calibrator of this run predicts a spread" in made_now.out
    assert "1 of 3 views are not there" in made_now.out
    assert {(row.kind, row.state) for row in store.runs.list(kinds=names)} == {
        ("weights", "finished"),
        ("coverage", "failed"),
        ("direction", "finished"),
    }
    again = typed("--only", "weights", "--only", "direction")
    assert again.out.count("there already") == 2
    assert len(store.runs.list(kinds=("weights",))) == 1


def test_a_view_that_a_run_does_not_have_is_refused_by_name(typed):
    told = typed("--only", "wieghts")
    assert told.code == 1
    assert "no view 'wieghts'. Did you mean 'weights'" in told.err


def test_every_view_says_what_it_does(made):
    _, _, report = made
    store = Store(made[0].root.parent / "bare")
    for view, asked in offered_views(report):
        assert foresee(view, asked, store, finished=True).seconds > 0, view.name
    assert {view.name for view in all_views().values() if view.work is None} == set()


def test_time_is_foreseen_from_images_rates_and_what_has_to_be_made_first(made, tmp_path):
    store, recipe = Store(tmp_path / "store"), made[2].recipe

    def seconds(view, finished=True, **settings):
        return foresee(view, view.ask(recipe, **settings), store, finished=finished).seconds

    keep_rates(store, encode={}, matmul=1.0e7)
    few, many = (seconds(BLAME, task="alpha", images=images) for images in (8, 16))
    walk = [seconds(INTERPOLATION, start="pretrained", end="merged", points=points) for points in (11, 21, 31)]
    assert many > 1.5 * few
    assert walk[2] - walk[1] == pytest.approx(walk[1] - walk[0], rel=1e-6)
    keep_rates(store, matmul=1.0e8)
    assert seconds(BLAME, task="alpha", images=16) < 0.3 * many
    assert seconds(COVERAGE, finished=False) > seconds(COVERAGE) + 1, "the run comes first"
    frames = [seconds(FILM, place="merge.params.scaling", values=tuple(range(count))) for count in (3, 6)]
    assert frames[1] > 1.3 * frames[0]


def test_what_earlier_views_took_here_corrects_what_is_foreseen(made, tmp_path):
    store, recipe = Store(tmp_path / "store"), made[2].recipe
    asked = GEOMETRY.ask(recipe)
    before = foresee(GEOMETRY, asked, store, finished=True)
    assert "typical rates" in before.basis
    took(store, asked, None, 10 * before.seconds)
    assert foresee(GEOMETRY, asked, store, finished=True) == before, "it may have made its run along with it"
    run = store.runs.submit("run", {}, owner="test").id
    took(store, asked, run, 10 * before.seconds)
    after = foresee(GEOMETRY, asked, store, finished=True)
    assert after.seconds == pytest.approx(10 * before.seconds, rel=0.05)
    assert "last ones" in after.basis


@pytest.mark.parametrize("now", ["all", ("alpha", "beta")])
def test_an_earlier_view_of_all_experts_counts_those_of_the_zoo(tmp_path, now):
    zoo = make_zoo(tmp_path / "zoo", experts=(*"abdefghi", "alpha", "beta"))
    store, recipe = Store(tmp_path / "store"), parse_recipe({"zoo": str(zoo), "merge": {"method": "task_arithmetic"}})
    asked, experts = BLAME.ask(recipe, task="alpha"), [{"name": name} for name in now] if now != "all" else now
    foreseen = foresee(BLAME, asked, store, finished=True).seconds
    took(store, asked, store.runs.submit("run", {}, owner="test").id, foreseen, BLAME)
    other = BLAME.ask(parse_recipe({**recipe.model_dump(mode="json"), "experts": experts}), task="alpha")
    bare = foresee(BLAME, other, Store(tmp_path / "bare"), finished=True).seconds
    assert foresee(BLAME, other, store, finished=True).seconds == pytest.approx(bare, rel=0.02)


def took(store, asked, parent, seconds, view=GEOMETRY):
    """A row of a view that took so long."""
    row = store.runs.submit(view.name, asked.model_dump(mode="json"), parent=parent, owner="test")
    store.runs.finish(row.id, "gone")
    ended = store.runs.get(row.id).finished
    change = sa.update(run_table).where(run_table.c.id == row.id).values(started=ended - seconds)
    store.database.write(lambda connection: connection.execute(change))


def test_a_run_of_weights_alone_offers_views_on_weights(made):
    alone = made[2].model_copy(update={"accuracy": {}})
    assert [view.name for view, _ in offered_views(alone)] == ["weights", "receipt", "spectra"]
