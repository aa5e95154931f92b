"""From a request to a graph of steps: a pure function of the request and of the content of a zoo's files.

A step's key names everything that its result depends on, and nothing else; where files lie (``sources``) is no part
of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ...catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS, MergeRow, TransformRow, check_needs, resolve
from ...errors import EngineError, RecipeError, nearest
from ...features import choose_device, device_class
from ...manifest import Task
from ...recipe import CalibratorCall, Recipe, parse_recipe
from ...store import Store, step_key
from ...weights import check_same_architecture
from ...zoo.encoders.backbone import architecture, preprocessing
from ...zoo.folder import Zoo
from ..steps import PACKAGE, SHARE, Plan, Step
from .joint import learns_coefficients, refuse_other_merges
from .projecting import ProjectionRequest, projection_step
from .text_heads import heads_step

VERSIONS = {"merge": 1, "salience": 1, "features": 1, "calibrate": 1, "bundle": 1}
VERSIONS |= {"validation_features": 1, "validate": 1, "sweep": 1}
ENCODING = ("features", "validation_features")
DEFAULT_ETA = 0.7
CONTROL = "pretrained"

# Kind of a row of the run table → the function (request, store) → Plan; a leading dot means "inside this package".
PLANNERS: dict[str, str] = {
    "run": ".pipeline.run.plan:plan_run_request",
    "projection": ".pipeline.run.plan:plan_projection",
    "register": ".pipeline.zoos.pictures:plan_register",
    "experiment": ".pipeline.studies.experiment:plan_experiment",
    "import": ".pipeline.zoos.import_checkpoints:plan_import",
    "weights": ".pipeline.views.weight_plans:plan_weights",
    "interpolation": ".pipeline.views.weight_plans:plan_interpolation",
    "depth": ".pipeline.views.plans:plan_depth",
    "stitching": ".pipeline.views.plans:plan_stitching",
    "shift": ".pipeline.views.plans:plan_shift",
    "feature_view": ".pipeline.views.plans:plan_feature_view",
    "sweep": ".pipeline.studies.sweep:plan_sweep",
    "gc": ".pipeline.collecting:plan_collect",
    "preflight": ".pipeline.preflight.check:plan_preflight",
    "fetch": ".pipeline.zoos.fetch:plan_fetch",
    "finetune": ".pipeline.zoos.finetune:plan_finetune",
}


def plan_request(kind: str, request: Mapping[str, Any], store: Store) -> Plan:
    """Plan what a row of the run table asks for.

    Args:
        kind: a row of PLANNERS.
        request: for a run ``{"recipe": …, "projection": …}``, for a projection its parameters and the run's key.
        store: gives digests of files.

    Raises:
        EngineError: the request cannot be carried out, with the reason.
    """
    place = PLANNERS.get(kind)
    if place is None:
        raise EngineError(f"There is no kind of work '{kind}'. {nearest(kind, PLANNERS)}")
    module, _, name = place.partition(":")
    return getattr(import_module(module, PACKAGE), name)(request, store)


def plan_run_request(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan a run as a page asks for it: a recipe, and optionally one projection of its result."""
    recipe = parse_recipe(request.get("recipe"))
    view = ProjectionRequest.parse(request["projection"]) if request.get("projection") else None
    return plan_run(recipe, store, view)


def plan_run(recipe: Recipe, store: Store, view: ProjectionRequest | None = None) -> Plan:
    """Plan a run: merge, features, calibrators, report; optionally one projection of it."""
    resolved = resolve(recipe)
    run = RunSteps(Zoo.open(recipe.zoo), resolved, store)
    bundle = run.bundle()
    if view is not None:
        step = projection_step(view, bundle, inputs={"bundle": bundle})
        run.steps[step.key] = step
    return Plan(steps=tuple(run.steps.values()), result=bundle, identity=bundle)


def plan_projection(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan a view on a finished run (``bundle``: the key of what it left)."""
    view = ProjectionRequest.parse({name: value for name, value in request.items() if name != "bundle"})
    run = str(request.get("bundle", ""))
    folder = store.find(run)
    if folder is None:
        raise EngineError("The run to be projected is no longer in the store. Run its recipe again.")
    step = projection_step(view, run, sources={"folder": str(folder)})
    return Plan(steps=(step,), result=step.key, identity=step.key)


def steps_of(recipe: Recipe, store: Store) -> RunSteps:
    """A recipe's checked models and data, and the steps that are asked of it: for plans of other kinds than a run."""
    return RunSteps(Zoo.open(recipe.zoo), resolve(recipe), store)


@dataclass
class RunSteps:
    """The steps of one run, collected in topological order."""

    zoo: Zoo
    recipe: Recipe
    store: Store
    steps: dict[str, Step] = field(default_factory=dict)

    def __post_init__(self) -> None:
        manifest = self.zoo.manifest
        self.experts = self.zoo.choose(self.recipe)
        for row in (MERGE_METHODS[self.recipe.merge.method], *(TRANSFORMS[t.method] for t in self.recipe.transforms)):
            check_needs(row, len(self.experts))
        digest = self.store.digest_file
        self.digests = {name: digest(self.zoo.weights_path(name)) for name in ("base", *(n for n, _ in self.experts))}
        self.references = [reference.name for reference in manifest.references]
        self.digests |= {name: digest(self.zoo.weights_path(name)) for name in self.references}
        self.data_digests = {name: data.digest(digest) for name, data in self.zoo.data.items()}
        self.probe = self.recipe.probe.model_dump(mode="json")
        self.sources = {"zoo": str(self.zoo.folder)}
        self.device = device_class(choose_device())
        self.config = architecture(self.zoo.folder, manifest)
        self.preprocess = preprocessing(self.zoo.folder, manifest).model_dump(mode="json")
        self.expert_of = {manifest.expert_table[name].task: name for name, _ in self.experts}
        self._heads_step: Step | None = None
        self._preflight()

    @property
    def by_task(self) -> bool:
        """Whether the merge makes a model for each task."""
        return MERGE_METHODS[self.recipe.merge.method].yields == "per_task"

    def _preflight(self) -> None:
        """Refuse at once what would fail after minutes."""
        base = self.zoo.weights("base")
        for name in (*(name for name, _ in self.experts), *self.references):
            check_same_architecture(base, self.zoo.weights(name), name)
        self._find_heads()
        for row in (MERGE_METHODS[self.recipe.merge.method], *(TRANSFORMS[t.method] for t in self.recipe.transforms)):
            self._check_images(row)
        scored = [task for task in self.expert_of if task in self.zoo.data]
        merge_row = MERGE_METHODS[self.recipe.merge.method]
        for call in self.recipe.calibrators:
            refuse_other_merges(self.recipe, call)
            if CALIBRATORS[call.method].deep and call.on == "merged" and merge_row.yields != "static":
                each = "task" if merge_row.yields == "per_task" else "image"
                raise RecipeError(
                    f"{CALIBRATORS[call.method].title} acts inside one merged encoder, but "
                    f"{merge_row.title} makes one for each {each}. "
                    "Choose a calibrator of the output, such as Surgery, or another merge method."
                )
        if self.recipe.calibrators and not (scored and self.has_heads):
            why = "" if self.has_heads else f" (no heads: {self.zoo.text_problem})"
            raise RecipeError(
                f"Calibrators need images and heads; the chosen experts' tasks lack one of them{why}. "
                "Take the calibrators out, or add `data:` and `heads:` to zoo.yaml."
            )

    def _check_images(self, row: MergeRow | TransformRow) -> None:
        """Refuse a method that reads images or heads which the zoo does not have."""
        for task in self.expert_of if {"unlabelled", "validation"} & row.needs else ():
            if task not in self.zoo.data:
                raise RecipeError(
                    f"{row.title} learns from images, and task '{task}' has none. "
                    "Add `data:` to zoo.yaml, leave that expert out, or choose a method that needs no images."
                )
            if "validation" in row.needs and not self.zoo.data[task].has("val"):
                raise RecipeError(
                    f"{row.title} needs labelled validation images (val_x, val_y), and task '{task}' has none. "
                    "Nothing is ever chosen on evaluation images; add them, or choose another method."
                )
        if "heads" in row.needs and not self.has_heads:
            raise RecipeError(
                f"{row.title} needs classification heads (none: {self.zoo.text_problem}). Add `heads:` to zoo.yaml "
                "or choose another method."
            )

    def _find_heads(self) -> None:
        """The zoo's own heads, else those that its text encoder gives."""
        if self.zoo.manifest.heads:
            self.digests["heads"] = self.store.digest_file(self.zoo.path(self.zoo.manifest.heads))
        elif len(self.zoo.data) and not self.zoo.text_problem:
            self._heads_step = heads_step(self.zoo, self.store, self.digests["base"])
            self.digests["heads"] = self._heads_step.key
            self.sources["heads"] = str(self.store.folder_of(self._heads_step.key))

    def heads_input(self) -> dict[str, str]:
        """What a step that reads heads has as a further input: the step that builds them, where they are built."""
        if self._heads_step is None:
            return {}
        self.steps[self._heads_step.key] = self._heads_step
        return {"heads": self._heads_step.key}

    @property
    def has_heads(self) -> bool:
        """Whether anything can be classified."""
        return "heads" in self.digests

    def add(self, name: str, params: dict[str, Any], inputs: Mapping[str, Any], label: str, weight: float = 1.0) -> str:
        """Add a step (once) and return its key."""
        identity = {key: value for key, value in params.items() if key != "sources"}
        key = step_key(name, VERSIONS[name], identity, inputs, self.device)
        if key not in self.steps:
            gpu = name in ENCODING and self.device.startswith("cuda")
            threads = SHARE if name in ENCODING else 1 if name == "calibrate" else None
            self.steps[key] = Step(name, key, params, dict(inputs), label, weight, gpu, threads, VERSIONS[name])
        return key

    def merge(self, seed: int) -> str:
        """The merge, once for all seeds unless chance plays a part in it."""
        row = MERGE_METHODS[self.recipe.merge.method]
        random = (
            row.stochastic
            or bool(row.learns)
            or any(TRANSFORMS[call.method].stochastic for call in self.recipe.transforms)
        )
        params: dict[str, Any] = {
            "experts": [list(item) for item in self.experts],
            "digests": {name: self.digests[name] for name in ("base", *(n for n, _ in self.experts))},
            "transforms": [call.model_dump(mode="json") for call in self.recipe.transforms],
            "merge": self.recipe.merge.model_dump(mode="json"),
            "probe": self.probe if row.needs else {},
            "seed": seed if random else 0,
            "sources": self.sources,
        }
        if row.needs:
            params["data"] = {task: self.data_digests.get(task) for task in self.expert_of}
            params["heads"] = self.digests.get("heads")
        inputs = self.heads_input() if row.needs else {}
        return self.add("merge", params, inputs, f"Merging with {row.title}", 6.0 if row.learns else 2.0)

    def salience(self) -> str:
        """Salience of the chosen experts' layers."""
        names = [name for name, _ in self.experts]
        params = {
            "experts": [[name, 1.0] for name in names],
            "digests": {name: self.digests[name] for name in ("base", *names)},
            "sources": self.sources,
        }
        return self.add("salience", params, {}, "Measuring the salience of every layer")

    def features(self, model: str, task: Task, merge: str = "", *, adapt: bool = True) -> str:
        """Features of one model on one task; of the adaptation images only where somebody reads them."""
        params: dict[str, Any] = {
            "model": model,
            "digest": merge or self.digests[model],
            "task": task.name,
            "data": self.data_digests[task.name],
            "probe": self.probe,
            "adapt": adapt and task.domain == "in",
            "architecture": self.config,
            "preprocess": self.preprocess,
            "sources": self.sources,
        }
        if merge and self.by_task:
            params["weights_of"] = task.name
        title = "pretrained" if model == "base" else model
        label = f"Encoding {task.label} with {title}" + (" expert" if model in self.zoo.manifest.expert_table else "")
        return self.add("features", params, {"merged": merge} if merge else {}, label)

    def calibrate(self, call: CalibratorCall, seed: int, merge: str, inputs: dict[str, str]) -> str:
        """One calibrator, trained with one seed."""
        row = CALIBRATORS[call.method]
        tasks = [task.name for task in self.in_domain()]
        state = "pretrained" if call.on == CONTROL else "merged"
        targets = {task.name: self._domain_of(task) for task in self._scored() if self._domain_of(task) in tasks}
        roles = {role: inputs[role] for task in targets for role in (f"{state}/{task}", f"expert/{task}")}
        if row.deep and state == "merged":
            roles["merge"] = merge
        roles |= self.heads_input()
        params = {
            "method": call.method,
            "params": call.params,
            "state": state,
            "tasks": tasks,
            "targets": targets,
            "seed": seed,
            "probe": self.probe,
            "data": {task: self.data_digests[task] for task in targets},
            "heads": self.digests.get("heads"),
            "sources": {**self.sources, "name": call.name},
        }
        if learns_coefficients(call):
            params["joint"] = {
                "experts": [list(item) for item in self.experts],
                "digests": {name: self.digests[name] for name in ("base", *(n for n, _ in self.experts))},
                "merge": self.recipe.merge.model_dump(mode="json"),
            }
        return self.add("calibrate", params, roles, f"Training {row.title}", 5.0)

    def bundle(self) -> str:
        """Everything that a run leaves behind."""
        inputs: dict[str, str] = {"merge": self.merge(self.recipe.seeds[0])}
        if len(self.experts) > 1:
            inputs["salience"] = self.salience()
        for seed in self.recipe.seeds:
            inputs |= self.seed_inputs(seed)
        if any(role.count("/") == 2 for role in inputs):
            inputs |= self.heads_input()
        params = {
            "recipe": self.recipe.model_dump(mode="json", exclude={"zoo"}),
            "zoo": self.zoo.digest(self.store.digest_file),
            "sources": {**self.sources, "recipe_zoo": self.recipe.zoo},
        }
        key = self.add("bundle", params, inputs, "Measuring accuracy and bias")
        params["sources"]["identity"] = key
        return key

    def seed_inputs(self, seed: int) -> dict[str, str]:
        """Keys of one seed's artefacts by role ``seed/state/task``."""
        merge = self.merge(seed)
        inputs = {f"{seed}/merge": merge}
        if not self.has_heads:
            return inputs
        control = any(call.on == CONTROL for call in self.recipe.calibrators)
        for task in self._scored():
            inputs[f"{seed}/pretrained/{task.name}"] = self.features("base", task, adapt=control)
            if self._merged_can_score(task):
                inputs[f"{seed}/merged/{task.name}"] = self.features("merged", task, merge)
            for reference in self.references:
                inputs[f"{seed}/{reference}/{task.name}"] = self.features(reference, task, adapt=False)
            expert = self.expert_of.get(task.shifted_from or task.name)
            if expert:
                inputs[f"{seed}/expert/{task.name}"] = self.features(expert, task)
        roles = {role.split("/", 1)[1]: key for role, key in inputs.items()}
        for call in self.recipe.calibrators:
            inputs[f"{seed}/calibrator/{call.name}"] = self.calibrate(call, seed, merge, roles)
        return inputs

    def _scored(self) -> list[Task]:
        """Tasks with data: those of the chosen experts, and every out-of-domain task."""
        return [
            task
            for task in self.zoo.manifest.tasks
            if task.name in self.zoo.data and (task.domain == "out" or self._domain_of(task) in self.expert_of)
        ]

    def in_domain(self) -> list[Task]:
        """Tasks that a calibrator is trained on."""
        return [task for task in self._scored() if task.name in self.expert_of and not task.shifted_from]

    def _merged_can_score(self, task: Task) -> bool:
        """Weights that depend on the task exist for the chosen experts' tasks only."""
        return not self.by_task or self._domain_of(task) in self.expert_of

    @staticmethod
    def _domain_of(task: Task) -> str:
        return task.shifted_from or task.name
