"""A stranger's walk without a command line: own models and images from the browser to a measured merge."""

import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import open_clip
import psutil
import pytest
import torch
from open_clip.model import CLIP
from safetensors.torch import save_file
from torch.nn import functional

from tests.e2e.conftest import PATIENCE, serve_app, settle
from tests.image_files import CLASSES, encoded, picture

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CONFIG = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 32, "layers": 2, "head_width": 16, "mlp_ratio": 2.0},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
HALF = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic", "resize_mode": "shortest"}
STEPS = 60
EACH = 20  # images a class
MEGABYTES = 96  # of a large file
MIB = 2**20


def fine_tuned(base, images, labels):
    """A copy of the base whose image encoder learned to tell some classes, from text features of their names."""
    model = CLIP(**CONFIG)
    model.load_state_dict(base)
    tokens = open_clip.get_tokenizer("ViT-B-32")([f"a photo of a {name}." for name in CLASSES])
    with torch.no_grad():
        heads = model.encode_text(tokens, normalize=True)
    optimiser = torch.optim.Adam(model.visual.parameters(), 3e-3)
    for _ in range(STEPS):
        logits = 100 * model.encode_image(images, normalize=True) @ heads.T
        optimiser.zero_grad()
        functional.cross_entropy(logits, labels).backward()
        optimiser.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def write_brought(folder: Path) -> tuple[Path, Path]:
    """A base as open_clip keeps it on the hub, two experts as single files, and images in a zip of class folders."""
    models, archive = folder / "my models", folder / "shapes.zip"
    (models / "base").mkdir(parents=True)
    torch.manual_seed(0)
    base = {name: value.clone() for name, value in CLIP(**CONFIG).state_dict().items()}
    save_file(base, models / "base" / "open_clip_model.safetensors")
    document = {"model_cfg": CONFIG, "preprocess_cfg": HALF}
    (models / "base" / "open_clip_config.json").write_text(json.dumps(document))
    (models / "README.md").write_text("Not a model.")
    arrays, labels = [], []
    with zipfile.ZipFile(archive, "w") as packed:
        for label, name in enumerate(CLASSES):
            for number in range(2 * EACH):
                image = picture(label, number, (16, 16))
                split = "train" if number % 2 else "test"
                packed.writestr(f"{split}/{name}/{number}.png", encoded(image))
                arrays.append(torch.tensor(np.asarray(image), dtype=torch.float32))
                labels.append(label)
    images, labels = (torch.stack(arrays).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5, torch.tensor(labels)
    save_file(fine_tuned(base, images, labels), models / "shapes.safetensors")
    save_file(fine_tuned(base, images, 2 - labels), models / "other.safetensors")
    return models, archive


def choose(page, number, path):
    """Hand files to the page's place for them: 0 files, 1 a folder."""
    page.locator("input[type=file]").nth(number).set_input_files(str(path))


def proceed(page):
    page.get_by_role("button", name="Continue").click()


def test_from_files_of_this_computer_to_accuracies(app_page, app_address, tmp_path):
    models, archive = write_brought(tmp_path)
    app_page.goto(f"{app_address}/bring")
    choose(app_page, 1, models)
    expect(app_page.get_by_text("4 of 4 files here")).to_be_visible()
    expect(app_page.get_by_text("README.md left out")).to_be_visible()
    expect(app_page.get_by_role("textbox", name="Name").last).to_have_value("shapes")
    proceed(app_page)
    app_page.get_by_text("A .zip of class folders").wait_for()
    choose(app_page, 0, archive)
    expect(app_page.get_by_text(f"{3 * EACH} test, {3 * EACH} train images of 3 classes")).to_be_visible()
    proceed(app_page)
    expect(app_page.get_by_text("is described by “a photo of a circle.”")).to_be_visible()
    app_page.get_by_text("OpenAI's for ImageNet", exact=True).click()
    expect(app_page.get_by_text("OpenAI's 80 templates for ImageNet")).to_be_visible()
    proceed(app_page)
    app_page.get_by_role("textbox", name="Title").fill(f"Brought {tmp_path.name[-1]}")
    app_page.get_by_role("button", name="Check", exact=True).click()
    make = app_page.get_by_role("button", name="Make the zoo")
    expect(app_page.get_by_text(re.compile("parts are in order"))).to_be_visible()
    settle(app_page)
    expect(make).to_be_enabled()
    make.click()
    expect(app_page.get_by_text(f"brought_{tmp_path.name[-1]} is a zoo now: 2 experts")).to_be_visible()
    app_page.get_by_role("button", name="Run", exact=True).click()
    app_page.get_by_role("button", name="See the accuracies").click()
    expect(app_page.get_by_role("heading", level=1)).to_have_text("Accuracy, task by task")
    expect(app_page.get_by_text("Brought", exact=False).first).to_be_visible()
    expect(app_page.locator(".js-plotly-plot").first).to_be_visible()
    expect(app_page.get_by_role("alert")).to_have_count(0)


def test_a_large_file_takes_no_memory_and_is_not_sent_twice(chromium, tmp_path):
    large = tmp_path / "large.safetensors"
    large.write_bytes(os.urandom(MIB) * MEGABYTES)
    with serve_app(tmp_path / "store") as address:
        page = chromium.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"{address}/bring")
        page.get_by_role("button", name="Choose files").wait_for()
        server = next(p for p in psutil.process_iter(["cmdline"]) if is_server(p, address))
        before, sent = server.memory_info().rss, []
        page.on("request", lambda request: sent.append(request.method) if "/uploads/" in request.url else None)
        page.route("**/uploads/*/*", lambda route: route.abort(), times=1)  # the network loses the first part
        choose(page, 0, large)
        page.get_by_text("1 of 1 file here").wait_for()
        assert server.memory_info().rss - before < MEGABYTES * MIB / 2
        assert sent.count("PATCH") == MEGABYTES // 4 + 1
        page.goto(f"{address}/bring")
        choose(page, 0, large)
        page.get_by_text("known already and not sent again").wait_for()
        assert sent.count("PATCH") == MEGABYTES // 4 + 1
        page.get_by_text("2 Images", exact=True).click()
        page.get_by_text("A .zip of class folders").wait_for()
        expect(page.get_by_text("1 of 1 file here")).to_be_hidden()
        page.get_by_text("1 Models", exact=True).click()
        expect(page.get_by_text("1 of 1 file here")).to_be_visible()
        page.close()
    kept = [path for path in (tmp_path / "store" / "uploads").rglob("*") if path.is_file()]
    assert {path.stat().st_ino for path in kept} == {kept[0].stat().st_ino}


def is_server(process, address):
    """Tell whether a process is the app's server at an address, not the shell or test that started it."""
    command = process.info["cmdline"] or []
    return address.rpartition(":")[2] in command and "app.py" in command
