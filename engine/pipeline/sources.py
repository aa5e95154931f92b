"""Places of a zoo's files, passed to steps beside what their results depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..mounts import here
from ..recipe import Frozen

if TYPE_CHECKING:
    from ..zoo.folder import Zoo


class Sources(Frozen):
    """Folders of a zoo as the engine sees them, for steps that open it."""

    zoo: str
    heads: str = ""  # what the step left that built the heads, where the zoo brings none

    def open(self) -> Zoo:
        """Open the zoo, with the heads that were built for it.

        Raises:
            ZooError: the folder is no zoo.
        """
        from ..zoo.folder import Zoo

        return Zoo.open(here(self.zoo)).with_heads(here(self.heads))
