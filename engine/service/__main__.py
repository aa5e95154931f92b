"""The service as a process of its own: ``python -m engine.service [--calm SECONDS] [--stop]``."""

from __future__ import annotations

import argparse

from ..ending import carry_out
from ..store import Store


def main() -> int:
    """Serve the store of the environment, or end the service that does."""
    parser = argparse.ArgumentParser(prog="serve", description=__doc__)
    parser.add_argument("--stop", action="store_true", help="end the service of this store")
    parser.add_argument("--calm", type=float, default=0.0, help="seconds left to the first page before workers start")
    options = parser.parse_args()
    if options.stop:
        from .client import stop_service

        print(stop_service(Store()))
        return 0
    from .main import serve

    return serve(Store(), calm=options.calm)


if __name__ == "__main__":
    carry_out(main)
