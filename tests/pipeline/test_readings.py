"""Images decide some facts of a base that nobody describes, and leave others open: real files."""

import numpy as np
import pytest

from engine.zoo.importing.preprocess import unusual, usual
from engine.zoo.importing.request import parse_request
from engine.zoo.importing.survey import recognised
from tests import foreign
from tests.made_imports import silent

GIVEN = {"head_width": 32, "quick_gelu": False, "preprocess": "mean=0.5,0.5,0.5;std=0.27,0.27,0.27"}
OPTIONS = {"head_width": "--head-width", "quick_gelu": "--quick-gelu", "preprocess": "--preprocess"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Bare weights of the bundled zoo with two heads and 160 images a task."""
    place = tmp_path_factory.mktemp("files")
    document = {"base": str(foreign.write_state(place / "base.pt", "base")), "name": "z", "out": str(place / "zoo")}
    document |= {"experts": [], "heads": [], "data": {}}
    for name in ("digits", "signs"):
        with np.load(foreign.data(name)) as arrays:
            np.savez(place / f"{name}.npz", test_x=arrays["test_x"][:160], test_y=arrays["test_y"][:160])
        expert = foreign.write_tensors(place / f"{name}.safetensors", name)
        document["experts"].append({"name": name, "path": str(expert)})
        document["heads"].append({"task": name, "path": str(foreign.write_head(place / f"head_{name}.pt", name))})
        document["data"][name] = str(place / f"{name}.npz")
    return document


def looked(files, *still_open):
    """Return what is recognised when some facts are left open: those that are known, and settings asked for."""
    given = {name: value for name, value in GIVEN.items() if name not in still_open}
    found = recognised(parse_request({**files, **given}), silent)
    assert all(f"Give {OPTIONS[fault.setting]}" in fault.text for fault in found.faults)
    return {fact.name: fact for fact in found.known}, {fault.setting for fault in found.faults}


def test_what_is_decided_is_kept_where_something_else_is_not(files):
    """The activation of a small network hardly matters; its heads do, whichever it has."""
    facts, asked = looked(files, "head_width", "quick_gelu")
    assert facts["head_width"].value == "32 (4 heads)"
    assert asked == {"quick_gelu"}


def test_images_never_decide_for_a_preprocessing_that_is_not_the_true_one(files):
    """The true one is none of the usual; the first rule took ImageNet's, with which the base recognises more images."""
    facts, asked = looked(files, "preprocess")
    assert asked == {"preprocess"}
    assert "preprocess" not in facts


def test_a_refusal_says_how_many_images_there_were(files):
    found = recognised(parse_request({**files, **{name: GIVEN[name] for name in ("head_width", "quick_gelu")}}), silent)
    assert [
        fault for fault in found.faults if "Classifying 160 images of digits, 160 images of signs does" in fault.text
    ]


def test_controls_differ_from_everything_that_may_be_chosen():
    usual_values = [value for _, value in usual(32)]
    assert not [name for name, value in unusual(32) if value in usual_values]
