"""The protocol of a modality: all that the engine asks about a kind of data. Free of torch at import.

A modality knows its encoders (config, structure, size), its samples (how they are read, prepared and shifted) and
what a sample is called. Nobody else asks which one a zoo has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..errors import ZooError
from ..layouts import Layout
from ..manifest import Manifest, Task
from ..preparation import Preparation

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from .brought_task import BroughtTask
    from .task_data import TaskData

FLOAT = 4  # bytes
MAX_CONFIG_BYTES = 100_000


@dataclass(frozen=True)
class TowerSize:
    """The size of a transformer."""

    dim: int  # of its features
    matrices: tuple[tuple[int, int], ...]  # shapes of the weight matrices of its blocks
    parameters: int
    flops: float  # of one sample
    activations: int  # bytes at the widest place, for one sample
    inner: Mapping[str, int] = field(default_factory=dict)  # dim, width, blocks, tokens: where something can act inside

    @property
    def name(self) -> str:
        """Return a name that tells sizes apart."""
        return f"{self.dim}-{self.parameters}"

    @property
    def bytes(self) -> int:
        """Return the bytes of its parameters in float32."""
        return self.parameters * FLOAT


class Brought(Protocol):
    """Samples of one task as somebody brings them."""

    brought: tuple[str, ...]  # the data's own class names, () where labels are numbers
    lengths: dict[str, int]  # by split

    def labels(self, split: str) -> np.ndarray:
        """Return labels of a split (n,).

        Raises:
            DataError: it has none, or they are no classes.
        """


class Modality(Protocol):
    """One kind of data."""

    name: str  # as zoo.yaml has it
    one: str  # what a sample is called
    many: str
    layout: Layout
    preparation: type  # of its samples
    shown: Literal["picture", "words"]  # how a sample is shown; data in words have ``texts(split)``, a pair a sample
    shifts: Mapping[str, tuple[str, ...]]  # set of drawn shifts → its kinds
    augmentations: tuple[str, ...]  # ways in which training samples are varied, the usual one first
    drawn: Mapping[str, str]  # the same sets → their titles
    shifted_by: str  # what the shifts do, behind "are shifted:"
    parts: str  # what a sample has that can be hidden in turn, '' where nothing can: see ``occluded``
    graded: bool  # whether tasks are published with measures of their own beside accuracy
    padded: bool  # whether samples are filled up to one length, so that not all tokens of one are there
    facts: tuple[str, ...]  # about the models of a zoo, that people are told with their sources
    exporter: str  # the function that writes a merged model as its kind is published, '' for open_clip's
    surveyor: str  # the one that looks at files that are to become a zoo, '' for CLIP's
    tokenizers: tuple[str, ...]  # files that come with published weights, beside the usual ones
    examples: tuple[str, str]  # a task's samples on the hub and on a server, as a field's hint names them
    suspects: str  # what may have been read wrongly where a model knows nothing
    worded: bool  # whether heads can be built of class names in prompts; else experts bring their own
    files: tuple[str, ...]  # endings of files in which people bring samples
    forms: str  # the same in words, with how a task's samples are to be laid out

    def reads(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a model config is of one of its encoders."""

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a config that lies beside published weights is of a model for its samples."""

    def answers(self, manifest: Manifest) -> bool:
        """Tell whether a zoo's models give the likelihoods of written answers, and no features."""

    def assumed(self, manifest: Manifest) -> str:
        """Return a warning about what is taken for granted because zoo.yaml does not state it, '' for nothing."""

    def published_bytes(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Return the bytes of a published base and of an expert in float32, (0, 0) where the size is not known."""

    def import_changes(self, manifest: Manifest) -> Mapping[str, Any]:
        """Return what a description says of reading samples, by the names of an import's request."""

    def architecture(self, folder: Path, manifest: Manifest) -> dict[str, Any]:
        """Return the model config of a zoo's backbone.

        Raises:
            ZooError: it is missing, unreadable or of no known architecture.
        """

    def preprocessing(self, folder: Path, manifest: Manifest) -> Preparation:
        """Return how samples become tensors.

        Raises:
            ZooError: what is needed for it is missing.
        """

    def misread(self, own: Any, theirs: Any) -> str:
        """Return why a base, whose samples are prepared in one way, cannot go on with another; '' where it can."""

    def extent_in_words(self, preparation: Any) -> str:
        """Return what a check says of a base that fits: whose tensors, and samples of which extent."""

    def width(self, config: Mapping[str, Any]) -> int:
        """Return the dimensions of features."""

    def shape(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``d``, the dimensions of a feature, ``w``, those of a token, and ``blocks``; None where not stated."""

    def head_width(self, config: Mapping[str, Any]) -> int:
        """Return the channels in a head of attention."""

    def layout_of(self, config: Mapping[str, Any]) -> Layout:
        """Return how an encoder's tensors are named."""

    def size(self, config: Mapping[str, Any]) -> TowerSize | None:
        """Count parameters and work of an encoder; None where it is of another kind."""

    def outline(self, config: Mapping[str, Any]) -> nn.Module:
        """Return an encoder on the meta device: names and shapes, no memory.

        Raises:
            ZooError: the config cannot be built.
        """

    def prepared(self, samples: Any, preparation: Any) -> Tensor:
        """Turn samples, as task data give them, into a compact tensor (n, …) on the CPU."""

    def finished(self, prepared: Tensor, preparation: Any) -> Tensor:
        """Turn prepared samples into what an encoder takes, on the device that they are on."""

    def features(self, encoder: nn.Module, finished: Tensor) -> Tensor:
        """Return what an encoder makes of finished samples, without what no feature depends on; not differentiable."""

    def samples(self, prepared: Tensor) -> np.ndarray:
        """Turn prepared samples back into what task data give."""

    def shifted(self, prepared: Tensor, kind: str, task: str, seed: int, preparation: Any) -> Tensor:
        """Shift prepared samples of a task; chance depends on kind, task and seed only."""

    def augmented(self, samples: Tensor, kind: str, chance: np.random.Generator) -> Tensor:
        """Vary training samples, as an encoder takes them; the same state of chance gives the same samples."""

    def occluded(self, prepared: Tensor, preparation: Any) -> tuple[np.ndarray, Tensor]:
        """Hide each part of one prepared sample in turn: places (k,) of the parts, and k samples without one each."""

    def blank(self, config: Mapping[str, Any], count: int) -> tuple[Any, Preparation]:
        """Return empty samples with their preparation, to measure an encoder's speed."""

    def bytes_each(self, encoder: nn.Module, extent: int) -> int:
        """Estimate the bytes that one sample of some extent takes at the widest place of an encoder."""

    def open_task(self, folder: Path, task: Task, preparation: Callable[[], Preparation] | None = None) -> TaskData:
        """Open a task's data and check its form.

        Raises:
            DataError: missing or damaged files, wrong forms, samples without labels, an empty task.
        """

    def find_brought(self, place: Path) -> tuple[list[Path], list[str]]:
        """Return files and folders of a place that hold one task's samples each, and what is left out.

        Raises:
            DataError: there are none.
        """

    def find_tasks(self, place: Path) -> tuple[Sequence[BroughtTask], list[str]]:
        """Return the tasks of which a place holds samples, by name, and what is left out.

        Raises:
            DataError: none, samples that cannot be read, or two tasks of one name.
        """

    def set_aside(self, task: Any, zoo: Path, *, share: float, seed: int, link: bool) -> str:
        """Bring a task without splits into a zoo's folder: a share of every class to test on, the rest to train on.

        Args:
            task: one of :meth:`find_tasks`.
            zoo: the zoo's folder.
            share: of every class's samples that are tested on, between 0 and 1.
            seed: of the choice.
            link: make hard links where the disk allows it, where samples are files.

        Returns:
            What the manifest names as ``data:``.

        Raises:
            DataError: a share that leaves nothing, labels that are missing, or no room on the disk.
        """

    def open_brought(self, path: Path, name: str) -> Brought:
        """Open the samples that somebody brings for a task, in little time and memory.

        Raises:
            DataError: nothing that can be read as samples with labels, or too much of it to be read in passing.
        """


def read_json(path: Path) -> Any:
    """Return what a model config holds, whatever kind of data its encoder is for.

    Raises:
        ZooError: it is missing, unreadable or too large.
    """
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ZooError(f"{path.name} is too large for a model config.")
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ZooError(f"The backbone's config {path.name} cannot be read: {error}.") from error
