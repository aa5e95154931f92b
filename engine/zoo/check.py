"""Everything that can be wrong with a zoo, found before anything long starts, and all of it at once."""

from __future__ import annotations

from ..errors import ZooError
from ..manifest import locate_zoo, read_manifest
from ..types import Finding, Progress
from .described.make import holding
from .described.sources import describes
from .folder import Zoo
from .inspection.parts import inspect


def check_zoo(zoo: str, progress: Progress) -> list[str]:
    """Check files, architecture, keys, shapes, values, heads, data and how well they agree.

    Args:
        zoo: a bundled zoo's name or a path.
        progress: told what is being checked.

    Returns:
        One sentence for each part that is in order, or that is worth knowing.

    Raises:
        ZooError: everything that is wrong, one line each.
    """
    opened = Zoo.open(zoo)
    findings = absent(zoo) or list(inspect(opened, progress))
    faults = [finding.text for finding in findings if finding.level == "error"]
    if faults:
        number = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ZooError("\n".join([f"The zoo '{opened.manifest.name}' has {number}:", *faults]))
    return [f"Warning: {found.text}" if found.level == "warning" else found.text for found in findings]


def absent(zoo: str) -> list[Finding]:
    """Return what a description lacks on this machine, all at once; nothing for a zoo whose files are there."""
    found = holding(zoo) if describes(read_manifest(locate_zoo(zoo))) else None
    if found is None:
        return []
    if not found.missing:
        return [
            Finding("error", f"The files of '{zoo}' are here, but not converted: `python -m engine zoo fetch {zoo}`.")
        ]
    sizes = [f" (about {item.about / 1e6:,.0f} MB)" if item.about else "" for item in found.missing]
    findings = [
        Finding("error", f"{item.label}: {item.source} is not on this machine{size}.")
        for item, size in zip(found.missing, sizes, strict=True)
    ]
    todo = f"`python -m engine zoo fetch {zoo}` downloads it after asking; `--from FOLDER` takes it from a folder."
    return [*findings, Finding("error", f"About {found.about / 1e9:.1f} GB and the images. {todo}")]
