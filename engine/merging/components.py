"""Task vectors of one kind of layer."""

from __future__ import annotations

from ..catalog.transforms import ComponentParams
from ..errors import MergeError
from ..layouts import bare, component_of, place_of
from ..types import Context, TaskVectors, Weights
from .assemble import Changed


def component(base: Weights, task_vectors: TaskVectors, params: ComponentParams, context: Context) -> Changed:
    """Keep or drop the layers of one component; what is dropped is given back to the base.

    Source: a control for Jin et al., ICLR 2025, arXiv:2407.07089, whose experts train attention alone.

    Raises:
        MergeError: no layer is of this component, or every one is.
    """
    of_it = {name for name in task_vectors.names if _kind(name) == params.component}
    if not of_it or len(of_it) == len(task_vectors.names):
        found = sorted({_kind(name) for name in task_vectors.names})
        raise MergeError(
            f"{'No' if not of_it else 'Every'} layer of these experts is of the component '{params.component}'; they "
            f"have {', '.join(found)}. Choose another one."
        )
    pruned = of_it if params.what == "drop" else set(task_vectors.names) - of_it
    return Changed(
        task_vectors,
        lambda name, stack, experts: stack,
        pruned=frozenset(pruned),
        details={"kept_layers": len(task_vectors.names) - len(pruned)},
        elementwise=True,
    )


def _kind(name: str) -> str:
    place = place_of(name)
    return component_of(place.part if place else bare(name)).lower()
