"""Names of public tasks in file names; which folders may be chosen from."""

from pathlib import Path, PurePath

import pytest

from engine.errors import ZooError
from engine.zoo.importing.roots import configured_roots, find_candidates, inside_roots, list_folder
from engine.zoo.names import TASKS, distinct, expert_name, known_task, looks_like_base, safe_name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("clip-vit-base-patch32_stanford-cars", "stanford_cars"),
        ("models/clip-vit-large-patch14_fashion_mnist", "fashion_mnist"),
        ("clip-vit-base-patch16_emnist_letters/model.safetensors", "emnist_letters"),
        ("clip-vit-base-patch32_rendered-sst2", "rendered_sst2"),
        ("clip-vit-base-patch32_oxford_flowers102", "flowers102"),
        ("clip-vit-base-patch32_cifar100", "cifar100"),
        ("clip-vit-base-patch32_cifar10", "cifar10"),
        ("ViT-B-32/Cars/finetuned.pt", "stanford_cars"),
        ("ViT-B-32/SUN397Val/finetuned.pt", "sun397"),
        ("head_RESISC45.pt", "resisc45"),
        ("experts/kmnist.safetensors", "kmnist"),
        ("runs/my birds.pt", "my_birds"),
        ("birds/pytorch_model.bin", "birds"),
        ("flowers.safetensors", "flowers"),
        ("my pets/model.safetensors", "my_pets"),
        ("sun and rain.pt", "sun_and_rain"),
        ("oxford-flowers.pt", "flowers102"),
    ],
)
def test_experts_are_named_after_what_their_path_says(path, name):
    assert expert_name(PurePath(path)) == name


def test_every_public_task_is_known_by_its_own_name():
    assert len(TASKS) == 20
    for name, (title, _) in TASKS.items():
        assert known_task(name) == name
        assert known_task(title) == name
    assert known_task("birds") is None


def test_bases_and_safe_names():
    for path in ("zeroshot.pt", "ViT-B-32.pt", "clip-vit-base-patch32", "base.safetensors", "ViT-L-14"):
        assert looks_like_base(PurePath(path)), path
    for path in ("bert-base-uncased", "FacebookAI--roberta-base", "distilbert-base-cased", "flan-t5-base", "gpt2"):
        assert looks_like_base(PurePath(path)), path
    for path in (
        "bert-base-uncased-sst2",
        "flan-t5-base_glue-cola",
        "finetuned.pt",
        "clip-vit-base-patch32_mnist",
        "cars.safetensors",
    ):
        assert not looks_like_base(PurePath(path)), path
    assert safe_name("../../etc/passwd") == "etc_passwd"
    assert safe_name("…") == "expert"
    assert distinct(["a", "a", "b", "a"]) == ["a", "a_2", "b", "a_3"]


@pytest.fixture
def root(tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / "models" / "Cars").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.pt").write_bytes(b"x")
    monkeypatch.setenv("MERGELENS_ROOTS", str(root))
    return root


def test_nothing_outside_the_roots_is_seen(root, tmp_path):
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "linked.pt").symlink_to(tmp_path / "outside" / "secret.pt")
    (root / ".hidden").mkdir()
    (root / "notes.txt").write_text("x")
    assert configured_roots() == (root.resolve(),)
    assert [entry.name for entry in list_folder(root)] == ["models"]
    for path in (root / ".." / "outside", root / "link", root / "linked.pt", Path("/etc/passwd"), "a\0b"):
        with pytest.raises(ZooError):
            inside_roots(path)
    with pytest.raises(ZooError):
        list_folder(tmp_path / "outside")


def test_candidates_by_their_names(root):
    for name in ("zeroshot.pt", "head_Cars.pt", "Cars/finetuned.pt"):
        (root / "models" / name).write_bytes(b"x")
    folder = root / "models" / "clip-vit-base-patch32_dtd"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    found = find_candidates(root)
    assert found.base.name == "zeroshot.pt"
    assert [expert_name(path) for path in found.experts] == ["stanford_cars", "dtd"]
    assert [path.name for path in found.heads] == ["head_Cars.pt"]


def test_the_search_ends_in_a_forest_of_folders(root, monkeypatch):
    monkeypatch.setattr("engine.zoo.importing.roots.MOST_FOLDERS", 5)
    for number in range(20):
        (root / f"f{number:02}").mkdir()
        (root / f"f{number:02}" / "m.pt").write_bytes(b"x")
    deep = root / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    (deep / "too_deep.pt").write_bytes(b"x")
    assert len(find_candidates(root).experts) <= 5
    monkeypatch.setattr("engine.zoo.importing.roots.MOST_FOLDERS", 500)
    assert len(find_candidates(root).experts) == 20


def test_the_default_roots_are_here_and_home(monkeypatch, tmp_path):
    monkeypatch.delenv("MERGELENS_ROOTS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert configured_roots() == (tmp_path.resolve(),)
