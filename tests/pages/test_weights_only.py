"""A zoo made of checkpoints alone, without heads or images: its run opens in every page and says what is missing."""

from contextlib import nullcontext

import pytest
from safetensors.torch import save_file

from engine.commands.runs import export
from engine.errors import EngineError
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.request import parse_request
from tests.made_checkpoints import clip, moved, visual_of, write_hf
from tests.pages.conftest import ROOT
from tests.pages.test_lab import problems, texts

PAGES = sorted(path.stem for path in (ROOT / "pages").glob("[a-z]*.py"))


@pytest.fixture
def run(workspace, tmp_path):
    """A finished run on an imported zoo, in the app's store."""
    base = visual_of(clip())
    write_hf(tmp_path / "clip-vit-base-patch32", base)
    experts = []
    for number, name in enumerate(("birds", "boats")):
        save_file(moved(base, number), tmp_path / f"{name}.safetensors")
        experts.append({"path": str(tmp_path / f"{name}.safetensors")})
    document = {"base": str(tmp_path / "clip-vit-base-patch32"), "experts": experts, "name": "own"}
    document["preprocess"] = "openai"  # no image came along that could tell
    import_zoo(parse_request({**document, "out": str(tmp_path / "own")}), lambda *_: None)
    run_recipe(parse_recipe({"zoo": str(tmp_path / "own")}), workspace.store)
    return workspace.store.runs.list(kinds=("run",))[0]


def test_every_page_opens(run, open_app):
    for page in PAGES:
        app = open_app(page, run=run.id)
        assert not app.exception, page
        assert not problems(app), page


def test_what_needs_images_says_that_there_are_none(run, open_app):
    for title in ("Over λ", "Disentanglement", "Sharpness", "Subspaces", "Alignment", "Spawning"):
        app = open_app("premerging", run=run.id, **{"premerging.view": title})
        assert not app.exception, title
        assert not problems(app), title
        assert ("No images" in texts(app)) == (title in ("Sharpness", "Spawning")), title


def test_a_table_of_accuracies_is_refused_and_says_what_to_export(run, tmp_path):
    for name, refused in (("table.tex", True), ("metrics.csv", False)):
        with pytest.raises(EngineError, match="Nothing was scored") if refused else nullcontext():
            export(run.id, tmp_path / name)
        assert (tmp_path / name).exists() != refused
