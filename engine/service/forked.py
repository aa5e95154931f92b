"""Imports of steps, made once by the process that all workers of a service are forked from.

No thread is started and no GPU is touched by it: neither would survive a fork. Garbage is not looked for among what is
imported: of that there is none, and each look would take a worker a quarter of a second.
"""

import gc

from ..ending import end_early
from .worker import preload

gc.disable()
end_early()
preload()
gc.freeze()
gc.enable()
