"""Content-addressed artefacts and the run table: all that outlives a process. Free of torch and dask."""

from .artefacts import Store
from .backups import Backup
from .collect import Collected, collect, read_collected
from .files import Artefact
from .keys import canonical_json, step_key
from .leases import ServiceStatus
from .logs import LogLine
from .rebuild import Rebuilt, rebuild, restore
from .reporter import FIRST_NUMBERS, Reporter
from .run import ACTIVE, ENDED, Run
from .runs import RunTable
from .usage import Usage, usage_of

__all__ = [
    "ACTIVE",
    "ENDED",
    "FIRST_NUMBERS",
    "Artefact",
    "Backup",
    "Collected",
    "LogLine",
    "Rebuilt",
    "Reporter",
    "Run",
    "RunTable",
    "ServiceStatus",
    "Store",
    "Usage",
    "canonical_json",
    "collect",
    "read_collected",
    "rebuild",
    "restore",
    "step_key",
    "usage_of",
]
