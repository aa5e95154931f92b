"""mergekit's YAML in and out: what both express means the same, everything else is refused by name."""

import pytest
import torch
import yaml
from typer.testing import CliRunner

from engine.__main__ import app
from engine.catalog import resolve
from engine.errors import RecipeError
from engine.pipeline.export.merge_files import merge_files
from engine.pipeline.foreign.mergekit import write_mergekit
from engine.pipeline.foreign.mergekit_read import read_mergekit
from engine.recipe import MethodCall, parse_recipe, read_recipe
from engine.weights import encoder_part, open_weights
from tests.tiny_zoo import make_zoo

EXPERTS = {"alpha": ("alpha", "experts/alpha.safetensors"), "beta": ("beta", "experts/beta.safetensors")}
FILES = {name: f"/models/{name}.safetensors" for name in EXPERTS}


def read(tmp_path, document):
    path = tmp_path / "mergekit.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return read_mergekit(path, "tiny", EXPERTS)


def configuration(method="task_arithmetic", own=None, **more):
    own = {"weight": 0.3} if own is None else own
    models = [{"model": path, "parameters": dict(own)} for path in FILES.values()]
    return {"merge_method": method, "base_model": "/models/base", "models": models, **more}


@pytest.mark.parametrize(
    "recipe",
    [
        {"merge": {"method": "weight_average"}},
        {"merge": {"method": "task_arithmetic", "params": {"scaling": 0.4}}},
        {"merge": {"method": "ties", "params": {"scope": "tensor", "merge": "sum", "density": 0.2, "scaling": 0.5}}},
        {"merge": {"method": "ties", "params": {"scope": "tensor", "merge": "mean", "density": 0.3, "scaling": 1.5}}},
        {"transforms": [{"method": "dare", "params": {"drop_rate": 0.75, "rescale": False}}]},
        {"merge": {"method": "task_arithmetic"}, "calibrators": [{"method": "surgery"}], "seeds": [1, 2]},
        {"merge": {"method": "task_arithmetic"}, "forward": "linearised"},
    ],
)
def test_there_and_back(tmp_path, recipe):
    before = resolve(parse_recipe({"zoo": "tiny", "experts": list(EXPERTS), **recipe}))
    path = tmp_path / "mergekit.yaml"
    path.write_text(write_mergekit(before, "/models/base", FILES))
    after = read_mergekit(path, "tiny", EXPERTS)
    assert after == before
    foreign = set(yaml.safe_load(path.read_text())) - {"merge_method", "models", "base_model", "parameters", "dtype"}
    assert foreign == {"mergelens"}


def test_weights_of_experts_and_normalize(tmp_path):
    document = configuration(parameters={"normalize": True, "lambda": 2.0})
    document["models"][0]["parameters"]["weight"] = 0.9
    found = read(tmp_path, document)
    assert found.merge.params["scaling"] == pytest.approx(2 / 1.2)
    assert [(e.name, e.weight) for e in found.experts] == [("alpha", 0.9), ("beta", 0.3)]
    back = yaml.safe_load(write_mergekit(found, "b", FILES))
    assert [m["parameters"]["weight"] for m in back["models"]] == pytest.approx([1.5, 0.5])


@pytest.mark.parametrize(
    ("document", "word"),
    [
        (configuration(slices=[]), "slices"),
        (configuration(tokenizer_source="base"), "tokenizer_source"),
        (configuration(surprise=1), "surprise"),
        (configuration("passthrough"), "passthrough"),
        (configuration(own={}), "weight"),
        (configuration(own={"weight": [0.1, 0.2]}), "gradient"),
        (configuration(own={"weight": 0.1, "gamma": 0.2}), "gamma"),
        (configuration("linear", parameters={"normalize": False}), "linear"),
        ({**configuration(), "models": [{"model": "somebody/unknown", "parameters": {"weight": 1}}]}, "unknown"),
        ({**configuration(), "models": []}, "models"),
        ([1], "merge_method"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(tmp_path, document, word):
    with pytest.raises(RecipeError, match=word):
        read(tmp_path, document)


@pytest.mark.parametrize(
    ("recipe", "word"),
    [
        ({"merge": {"method": "ties"}}, "scope"),
        ({"merge": {"method": "emr"}}, "emr"),
        ({"merge": {"method": "breadcrumbs", "params": {"scope": "tensor", "gamma": 0.0}}}, "where `gamma` is 0"),
        ({"transforms": [{"method": "lwptv"}]}, "lwptv"),
        (
            {
                "merge": {
                    "method": "model_stock",
                    "params": {"average": "cosines", "clamp": False, "by_task": True},
                }
            },
            "by_task: True",
        ),
        (
            {"merge": {"method": "weight_average"}, "experts": [{"name": "alpha", "weight": 0.5}, "beta"]},
            "weights of single experts",
        ),
    ],
)
def test_recipes_without_counterpart_are_refused(recipe, word):
    with pytest.raises(RecipeError, match=word):
        write_mergekit(parse_recipe({"zoo": "tiny", **recipe}), "b", FILES)


def test_zeros_are_written_to_files_so_that_mergekit_pytorch_does_not_miss_them(tmp_path):
    """It takes a 0 for a value that is missing, and fails."""
    recipe = {"experts": [{"name": "alpha", "weight": 0.0}, "beta"], "merge": {"method": "task_arithmetic"}}
    before = resolve(parse_recipe({"zoo": "tiny", **recipe}))
    written = yaml.safe_load(write_mergekit(before, "/models/base.safetensors", FILES))
    weights = [model["parameters"]["weight"] for model in written["models"]]
    assert weights == [pytest.approx(1e-30), pytest.approx(0.3)]
    after = read(tmp_path, written)
    assert [expert.weight * after.merge.params["scaling"] for expert in after.experts] == [0, pytest.approx(0.3)]


@pytest.mark.parametrize(
    ("model", "expert"),
    [
        ("tanganke/clip-vit-base-patch32_mnist", "mnist"),
        ("tanganke/clip-vit-base-patch32_stanford-cars", "stanford_cars"),
        ("me/vit-oxford_flowers102", "flowers102"),
        ("tanganke/clip-vit-base-patch32_fashion_mnist", None),
        ("tanganke/clip-vit-base-patch32_emnist_letters", None),
        ("/zoo/FashionMNIST.pt", None),
        ("/zoo/notmnist.safetensors", None),
        ("/zoo/mnist/model.safetensors", "mnist"),
        ("/zoo/mnist/dtd.safetensors", "dtd"),
        ("/zoo/mnist/svhn.safetensors", None),
        ("/zoo/experts/b.safetensors", "b"),
    ],
)
def test_a_model_is_not_taken_for_another(tmp_path, model, expert):
    spellings = {name: (name,) for name in ("mnist", "stanford_cars", "flowers102", "letters", "dtd")}
    spellings |= {"a": ("b",), "b": ("c",)}  # tasks
    models = [{"model": model, "parameters": {"weight": 0.3}}]
    path = tmp_path / "mergekit.yaml"
    path.write_text(yaml.safe_dump({"merge_method": "task_arithmetic", "base_model": "base", "models": models}))
    if expert is None:
        with pytest.raises(RecipeError, match="no expert for the model"):
            read_mergekit(path, "tiny", spellings)
    else:
        assert [choice.name for choice in read_mergekit(path, "tiny", spellings).experts] == [expert]


@pytest.mark.parametrize("normalize", [True, False])
def test_ties_means_what_mergekit_computes(tmp_path, normalize):
    """A slow float64 reading of the rule: trim each tensor, elect by sum, sum (or average) what agrees."""
    zoo = make_zoo(tmp_path / "zoo")
    switches = {"normalize": normalize, "lambda": 0.7} if normalize else {"normalize": False}
    recipe = read(tmp_path, configuration("ties", {"weight": 0.5, "density": 0.25}, parameters=switches))
    paths = [zoo / "experts" / f"{name}.safetensors" for name in EXPERTS]
    call = MethodCall(method=recipe.merge.method, params=recipe.merge.params)
    merge_files(zoo / "base.safetensors", paths, call, [], tmp_path / "m.safetensors")
    merged = encoder_part(open_weights(tmp_path / "m.safetensors"))
    base, *experts = (encoder_part(open_weights(path)) for path in (zoo / "base.safetensors", *paths))
    for name in ("visual.conv1.weight", "visual.transformer.resblocks.0.attn.in_proj_weight"):
        start = base.tensor(name).double()
        deltas = []
        for expert in experts:
            delta = expert.tensor(name).double() - start
            kept = int(0.25 * delta.numel())
            threshold = delta.abs().flatten().sort(descending=True).values[kept - 1]
            deltas.append(torch.where(delta.abs() >= threshold, delta, 0.0))
        weighted = 0.5 * torch.stack(deltas)
        mask = (weighted.sign() == torch.where(weighted.sum(0) >= 0, 1.0, -1.0)).double()
        mixed = (weighted * mask).sum(0)
        if normalize:
            divisor = (0.5 * mask).sum(0)
            mixed = 0.7 * mixed / torch.where(divisor == 0, 1.0, divisor)
        assert torch.allclose(merged.tensor(name).double(), start + mixed, atol=1e-6)


def test_the_command_converts_both_ways(tmp_path):
    zoo = make_zoo(tmp_path / "zoo")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"zoo: {zoo}\nmerge: {{method: task_arithmetic, params: {{scaling: 0.2}}}}\n")
    run = CliRunner().invoke
    assert run(app, ["convert", str(recipe), "--to", str(tmp_path / "mk.yaml")]).exit_code == 0
    document = yaml.safe_load((tmp_path / "mk.yaml").read_text())
    assert document["models"][0]["model"] == str(zoo / "experts" / "alpha.safetensors")
    assert isinstance(run(app, ["convert", str(tmp_path / "mk.yaml"), "--to", "x.yaml"]).exception, RecipeError)
    result = run(app, ["convert", str(tmp_path / "mk.yaml"), "--to", str(tmp_path / "b.yaml"), "--zoo", str(zoo)])
    assert result.exit_code == 0, result.output
    back = read_recipe(tmp_path / "b.yaml")
    assert back.merge.params["scaling"] == pytest.approx(0.2)
    assert [expert.name for expert in back.experts] == ["alpha", "beta", "gamma"]


def test_the_command_says_what_mergekits_dare_computes(tmp_path):
    zoo = make_zoo(tmp_path / "zoo")
    recipe, there, back = (tmp_path / name for name in ("recipe.yaml", "mk.yaml", "back.yaml"))
    recipe.write_text(f"zoo: {zoo}\ntransforms: [{{method: dare}}]\nmerge: {{method: task_arithmetic}}\n")
    for arguments in (["convert", recipe, "--to", there], ["convert", there, "--to", back, "--zoo", zoo]):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        assert "to the L1 norm from before" in " ".join(result.output.split())


@pytest.mark.parametrize(("layers", "fits"), [(2, True), (1, False)])
def test_the_command_compares_slices_with_the_blocks_of_the_zoo(tmp_path, layers, fits):
    zoo = make_zoo(tmp_path / "zoo")
    sources = [{"model": f"/models/{name}", "layer_range": [0, layers]} for name in EXPERTS]
    document = {"merge_method": "slerp", "base_model": "/models/alpha", "slices": [{"sources": sources}]}
    path = tmp_path / "mk.yaml"
    path.write_text(yaml.safe_dump({**document, "parameters": {"t": 0.5}}))
    result = CliRunner().invoke(app, ["convert", str(path), "--to", str(tmp_path / "b.yaml"), "--zoo", str(zoo)])
    assert (result.exit_code == 0) is fits
    assert fits or "[0, 2] for every source" in str(result.exception)
