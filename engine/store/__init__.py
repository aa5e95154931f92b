"""What outlives a process: content-addressed artefacts and the run table. Free of torch and dask."""

from .artefacts import Store
from .collect import Collected, collect, read_collected
from .files import Artefact
from .keys import canonical_json, step_key
from .leases import ServiceStatus
from .logs import LogLine
from .records import ACTIVE, ENDED, KINDS, Run
from .reporter import Reporter
from .runs import RunTable
from .usage import Usage, usage_of

__all__ = [
    "ACTIVE",
    "ENDED",
    "KINDS",
    "Artefact",
    "Collected",
    "LogLine",
    "Reporter",
    "Run",
    "RunTable",
    "ServiceStatus",
    "Store",
    "Usage",
    "canonical_json",
    "collect",
    "read_collected",
    "step_key",
    "usage_of",
]
