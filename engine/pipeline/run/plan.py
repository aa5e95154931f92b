"""From a request to a graph of steps: a pure function of the request and of the content of a zoo's files.

A step's key names everything that its result depends on, and nothing else; where files lie (``sources``) is no part
of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from ...catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS, adds_factors, counts_tokens, looks_at_images, resolve
from ...errors import EngineError
from ...features import choose_device, device_class
from ...manifest import Task
from ...recipe import CalibratorCall, Recipe
from ...store import Store
from ...weights import check_same_architecture
from ...zoo.encoders.backbone import architecture, preprocessing
from ...zoo.folder import Zoo, own_experts
from ..graph import Plan
from ..sources import Sources
from ..steps import Inputs, Step, StepKind, StepParams
from .adapters import factors_of
from .bundle import BundleInputs, BundleParams, SeedInputs, bundle
from .calibrating import CalibrateInputs, CalibrateParams, calibrate
from .coefficients import JointMerge, learns_coefficients
from .encoding import EncodingInputs, EncodingParams, FeaturesParams, features
from .findings import refuse
from .glance import STATES, GlanceInputs, GlanceParams, glance
from .linearised import coefficients_of
from .merging import MergeInputs, MergeParams, SalienceParams, merge, salience
from .projecting import ProjectionRequest, projection_step
from .text_heads import heads_step

CONTROL = "pretrained"
Encoded = Mapping[str, Mapping[str, str]]  # state → task → key of the features


def plan_run(recipe: Recipe, store: Store, view: ProjectionRequest | None = None) -> Plan:
    """Plan a run: merge, features, calibrators, report; optionally one projection of it."""
    resolved = resolve(recipe)
    run = RunSteps(Zoo.open(recipe.zoo), resolved, store)
    bundle = run.bundle()
    if view is not None:
        run.add(projection_step(view, bundle))
    steps = list(run.steps.values())
    seed = resolved.seeds[0]
    first = run.glance(run.steps[bundle].inputs.seeds[seed], seed)
    if first is not None and store.find(bundle, checksums=False) is None:
        last = max(place for place, step in enumerate(steps) if step.key in first.needs)
        steps.insert(last + 1, first)  # nothing reads what it leaves: it tells it, before calibrators train
    return Plan(tuple(steps), bundle)


def plan_projection(view: ProjectionRequest, run: str, store: Store) -> Plan:
    """Plan a projection of a finished run.

    Args:
        view: what is projected, and how.
        run: key of what the run left.
        store: where that lies.

    Raises:
        EngineError: it is not there any more.
    """
    folder = store.find(run)
    if folder is None:
        raise EngineError("The run to be projected is no longer in the store. Run its recipe again.")
    step = projection_step(view, run, folder=str(folder))
    return Plan((step,), step.key)


def steps_of(recipe: Recipe, store: Store, *, unaligned: bool = False) -> RunSteps:
    """Check a recipe's models and data, for plans of other kinds than a run; see :func:`.findings.refuse`."""
    return RunSteps(Zoo.open(recipe.zoo), resolve(recipe), store, unaligned=unaligned)


@dataclass
class RunSteps:
    """The steps of one run, collected in topological order."""

    zoo: Zoo
    recipe: Recipe
    store: Store
    steps: dict[str, Step] = field(default_factory=dict)
    unaligned: bool = False  # whether experts of other bases may be looked at as they are
    summed: bool = False  # whether a linearised merge's features are added up of its experts'

    def __post_init__(self) -> None:
        """Refuse at once what would fail after minutes, and take the digests of everything that steps depend on.

        Raises:
            RecipeError: what speaks against the recipe, see :mod:`.findings`.
            EngineError: a file of the zoo that cannot be used.
        """
        refuse(self.recipe, self.zoo, unaligned=self.unaligned)
        manifest = self.zoo.manifest
        self.experts = self.zoo.choose(self.recipe)
        digest = self.store.digest_file
        self.digests = {name: digest(self.zoo.weights_path(name)) for name in ("base", *(n for n, _ in self.experts))}
        self.references = [reference.name for reference in manifest.references]
        self.digests |= {name: digest(self.zoo.weights_path(name)) for name in self.references}
        self.data_digests = {name: data.identity(digest) for name, data in self.zoo.data.items()}
        self.sources = Sources(zoo=str(self.zoo.folder))
        self.device = device_class(choose_device())
        self.config = architecture(self.zoo.folder, manifest)
        self.preprocess = preprocessing(self.zoo.folder, manifest)
        self.expert_of = own_experts(manifest, [name for name, _ in self.experts])
        self._heads_step: Step | None = None
        base = self.zoo.weights("base")
        kinds = dict.fromkeys((name for name, _ in self.experts), "Expert")
        for name, kind in (kinds | dict.fromkeys(self.references, "Reference")).items():
            check_same_architecture(base, self.zoo.weights(name), name, kind)
        self._find_heads()

    @property
    def by_task(self) -> bool:
        """Return whether the merge makes a model for each task."""
        return MERGE_METHODS[self.recipe.merge.method].yields == "per_task"

    def _find_heads(self) -> None:
        """Find the zoo's own heads, else plan those that its text encoder gives."""
        if self.zoo.manifest.heads:
            self.digests["heads"] = self.store.digest_file(self.zoo.path(self.zoo.manifest.heads))
        elif len(self.zoo.data) and not self.zoo.text_problem:
            self._heads_step = heads_step(self.zoo, self.store, self.digests["base"])
            self.digests["heads"] = self._heads_step.key
            self.sources = Sources(zoo=self.sources.zoo, heads=str(self.store.folder_of(self._heads_step.key)))

    @property
    def has_heads(self) -> bool:
        """Return whether anything can be classified."""
        return "heads" in self.digests

    def heads(self) -> str | None:
        """Return the key of the step that builds the heads, None where the zoo brings them."""
        return self.add(self._heads_step) if self._heads_step is not None else None

    def beside(self, recipe: Recipe) -> RunSteps:
        """Return the steps of another recipe for the same zoo; files that both read are looked at once.

        Raises:
            RecipeError: what speaks against the recipe.
        """
        if recipe.experts != self.recipe.experts:
            return RunSteps(self.zoo, recipe, self.store, self.steps)
        refuse(recipe, self.zoo)
        other = copy(self)
        other.recipe = recipe
        return other

    def add(self, step: Step) -> str:
        """Add a step (once) and return its key."""
        self.steps.setdefault(step.key, step)
        return step.key

    def make(self, kind: StepKind, params: StepParams, inputs: Inputs[str] | None = None, label: str = "") -> str:
        """Make a step for the device that this machine has, add it and return its key."""
        gpu = self.device.startswith("cuda")
        return self.add(kind.plan(params, inputs, label=label, device=self.device, gpu=gpu))

    def digests_of(self, *names: str) -> dict[str, str]:
        """Return digests of weights by name, the base's with them."""
        return {name: self.digests[name] for name in ("base", *names)}

    def merge(self, seed: int) -> str:
        """Add the merge, once for all seeds unless chance plays a part in it."""
        row = MERGE_METHODS[self.recipe.merge.method]
        random = (
            row.stochastic
            or bool(row.learns)
            or any(TRANSFORMS[call.method].stochastic for call in self.recipe.transforms)
        )
        looks = looks_at_images(self.recipe)
        params = MergeParams(
            experts=self.experts,
            digests=self.digests_of(*(name for name, _ in self.experts)),
            transforms=self.recipe.transforms,
            merge=self.recipe.merge,
            probe=self.recipe.probe if looks else None,
            seed=seed if random else 0,
            data=self.looked_at,
            heads=self.digests.get("heads") if looks else None,
            factors=self._factors() if adds_factors(self.recipe) else None,
            counted=self.counted,
            tasks=self.tasks_of_experts,
            architecture=self.config if looks else None,
            preprocess=self.preprocess if looks else None,
            sources=self.sources,
        )
        inputs = MergeInputs[str](heads=self.heads() if looks else None)
        return self.make(merge, params, inputs, f"Merging with {row.title}")

    @property
    def looked_at(self) -> dict[str, str | None] | None:
        """Return digests of the images that a merge looks at, by task; None for one that looks at none."""
        return {t: self.data_digests.get(t) for t in self.expert_of} if looks_at_images(self.recipe) else None

    @property
    def tasks_of_experts(self) -> tuple[str, ...] | None:
        """Return each expert's task; None for a merge of weights alone into one model, which asks for none."""
        if not looks_at_images(self.recipe) and MERGE_METHODS[self.recipe.merge.method].yields == "static":
            return None
        return tuple(self.zoo.manifest.expert_table[name].task for name, _ in self.experts)

    @property
    def counted(self) -> Literal["present"] | None:
        """Return which tokens a merge counts; None where it counts none, or no sample is padded."""
        return "present" if self.zoo.modality.padded and counts_tokens(self.recipe) else None

    def _factors(self) -> dict[str, tuple[str, int]]:
        return factors_of(self.zoo, [name for name, _ in self.experts], self.store.digest_file)

    def salience(self) -> str:
        """Add the salience of the chosen experts' layers."""
        names = [name for name, _ in self.experts]
        experts = tuple((name, 1.0) for name in names)
        return self.make(
            salience, SalienceParams(experts=experts, digests=self.digests_of(*names), sources=self.sources)
        )

    def encoding(self, model: str, task: Task, merged: str | None) -> dict[str, Any]:
        """Return the parameters of encoding one task's images with one model; ``merged`` is the merge's key."""
        return {
            "model": model,
            "digest": merged or self.digests[model],
            "task": task.name,
            "data": self.data_digests[task.name],
            "probe": self.recipe.probe,
            "architecture": self.config,
            "preprocess": self.preprocess,
            "weights_of": self._domain_of(task) if merged and self.by_task else None,
            "around": self.digests["base"] if self.linearised(model) else None,
            "sources": self.sources,
        }

    def linearised(self, model: str) -> bool:
        """Return whether a model is evaluated by its first-order approximation around the base."""
        expert = self.zoo.manifest.expert_table.get(model)
        if expert is None:
            return model == "merged" and self.recipe.forward == "linearised"
        return "linearised" in (self.recipe.forward, expert.forward)

    def features(self, model: str, task: Task, merged: str | None = None, *, adapt: bool = True) -> str:
        """Add the features of one model on one task; of the adaptation images only where a step reads them."""
        params = FeaturesParams(**self.encoding(model, task, merged), adapt=adapt and task.role == "in")
        title = "pretrained" if model == "base" else model
        label = f"Encoding {task.label} with {title}" + (" expert" if model in self.zoo.manifest.expert_table else "")
        return self.encode(features, params, task, merged, label)

    def encode(self, kind: StepKind, params: EncodingParams, task: Task, merged: str | None, label: str) -> str:
        """Add a step that encodes a task's images, or that adds their features up where that is less work."""
        coefficients = coefficients_of(self.recipe, self.experts) if params.model == "merged" else None
        if coefficients:
            parts = {name: self._part(kind, params, task, name) for name in ("base", *coefficients)}
            if self.summed or all(self.store.find(part.key, checksums=False) for part in parts.values()):
                keys = {name: self.add(part) for name, part in parts.items()}
                params = params.model_copy(update={"coefficients": coefficients})
                return self.make(kind, params, EncodingInputs[str](merged, keys.pop("base"), keys), label)
        return self.make(kind, params, EncodingInputs[str](merged), label)

    def _part(self, kind: StepKind, params: EncodingParams, task: Task, model: str) -> Step:
        """Return the step that encodes the same images with the base, or with an expert by its derivative."""
        own = self.encoding(model, task, None)
        given = params.model_copy(update={name: own[name] for name in ("model", "digest", "weights_of", "around")})
        label = f"Encoding {task.label} with {'pretrained' if model == 'base' else f'{model} expert'}"
        gpu = self.device.startswith("cuda")
        return kind.plan(given, EncodingInputs[str](), label=label, device=self.device, gpu=gpu)

    def calibrate(self, call: CalibratorCall, seed: int, merged: str, encoded: Encoded) -> str:
        """Add one calibrator, trained with one seed on features by state and task."""
        row, state = CALIBRATORS[call.method], "pretrained" if call.on == CONTROL else "merged"
        tasks = tuple(task.name for task in self.in_domain())
        targets = {task.name: self._domain_of(task) for task in self._scored() if self._domain_of(task) in tasks}
        learned = learns_coefficients(call)
        params = CalibrateParams(
            method=call.method,
            params=call.params,
            state=state,
            tasks=tasks,
            targets=targets,
            seed=seed,
            probe=self.recipe.probe,
            data={task: self.data_digests[task] for task in targets},
            heads=self.digests.get("heads"),
            joint=JointMerge(
                experts=self.experts,
                digests=self.digests_of(*(name for name, _ in self.experts)),
                merge=self.recipe.merge,
            )
            if learned
            else None,
            name=call.name,
            experts=self.expert_of,
            sources=self.sources,
        )
        inputs = CalibrateInputs[str](
            features={who: {task: encoded[who][task] for task in targets} for who in (state, "expert")},
            merge=merged if row.deep and state == "merged" else None,
            heads=self.heads(),
        )
        return self.make(calibrate, params, inputs, f"Training {row.title}")

    def bundle(self) -> str:
        """Add everything that a run leaves behind."""
        first = self.merge(self.recipe.seeds[0])
        salient = self.salience() if len(self.experts) > 1 else None
        seeds = {seed: self.seed(seed) for seed in self.recipe.seeds}
        scored = any(part.features for part in seeds.values())
        inputs = BundleInputs[str](first, salient, seeds, self.heads() if scored else None)
        params = BundleParams(
            recipe=self.recipe.model_dump(mode="json", exclude={"zoo"}),
            zoo=self.zoo.digest(self.store.digest_file),
            recipe_zoo=self.recipe.zoo,
            sources=self.sources,
        )
        return self.make(bundle, params, inputs)

    def seed(self, seed: int) -> SeedInputs[str]:
        """Add the merge, features and calibrators of one seed."""
        merged = self.merge(seed)
        if not self.has_heads:
            return SeedInputs(merged)
        control = any(call.on == CONTROL for call in self.recipe.calibrators)
        encoded: dict[str, dict[str, str]] = {}
        for task in self._scored():
            encoded.setdefault("pretrained", {})[task.name] = self.features("base", task, adapt=control)
            if self._merged_can_score(task):
                encoded.setdefault("merged", {})[task.name] = self.features("merged", task, merged)
            for reference in self.references:
                encoded.setdefault(reference, {})[task.name] = self.features(reference, task, adapt=False)
            expert = self.expert_of.get(task.shifted_from or task.name)
            if expert:
                encoded.setdefault("expert", {})[task.name] = self.features(expert, task)
        calls = self.recipe.calibrators
        return SeedInputs(merged, encoded, {call.name: self.calibrate(call, seed, merged, encoded) for call in calls})

    def glance(self, made: SeedInputs[str], seed: int) -> Step | None:
        """Return the step that tells a seed's accuracies before any repair; None where nothing is scored."""
        encoded = made.features
        tasks = tuple(encoded.get("merged", ()))
        if not tasks:
            return None
        params = GlanceParams(
            tasks=tasks,
            probe=self.recipe.probe,
            heads=self.digests.get("heads"),
            data={task: self.data_digests[task] for task in tasks},
            seed=seed,
            sources=self.sources,
        )
        features = {state: dict(encoded[state]) for state in STATES if state in encoded}
        return glance.plan(params, GlanceInputs[str](features, self.heads()), device=self.device)

    def _scored(self) -> list[Task]:
        """Return the tasks with data: those of the chosen experts, and every out-of-domain task."""
        return [
            task
            for task in self.zoo.manifest.tasks
            if task.name in self.zoo.data and (task.domain == "out" or self._domain_of(task) in self.expert_of)
        ]

    def in_domain(self) -> list[Task]:
        """Return the tasks that a calibrator is trained on."""
        return [task for task in self._scored() if task.name in self.expert_of and not task.shifted_from]

    def out_of_domain(self) -> list[Task]:
        """Return the tasks that no expert of the zoo was trained on."""
        return [task for task in self._scored() if task.domain == "out"]

    def _merged_can_score(self, task: Task) -> bool:
        """Return whether the merged model has weights for a task; where they depend on it, an expert's tasks only."""
        return not self.by_task or self._domain_of(task) in self.expert_of

    @staticmethod
    def _domain_of(task: Task) -> str:
        return task.shifted_from or task.name
