"""Logs of the processes: lines for people, or JSON with the id of the run that a line is about."""

from __future__ import annotations

import json
import logging
import os
import time

from ..errors import EngineError, nearest

ENV = "MERGELENS_LOG_FORMAT"
FORMATS = ("text", "json")
LINE = "%(asctime)s %(name)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and where they are known run, step and error."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower(), "logger": record.name}
        found["message"] = record.getMessage()
        found |= {name: getattr(record, name) for name in ("run", "step") if hasattr(record, name)}
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def set_up(form: str = "") -> None:
    """Have the whole process log in one format.

    Args:
        form: ``text`` or ``json``; default the environment's MERGELENS_LOG_FORMAT, else text.

    Raises:
        EngineError: there is no such format.
    """
    form = form or os.environ.get(ENV) or FORMATS[0]
    if form not in FORMATS:
        raise EngineError(f"There is no log format '{form}'. {nearest(form, FORMATS)}")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(LINE))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    os.environ[ENV] = form  # processes started from here log alike
