"""A short soak with every run of the tests; `make soak` takes as many minutes as one likes."""

from __future__ import annotations

import pytest

from tests import database_server
from tests.soak.__main__ import soak

MINUTES = 0.7


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.flaky(reruns=1)
def test_half_a_minute_of_faults_loses_nothing():
    """The run table is in PostgreSQL where there is one, since more can go wrong then."""
    found = soak(MINUTES, 1, people=2, every=2.0, postgresql=not database_server.why_not())
    assert not found.faults, "\n".join([*found.faults, str(found.facts)])
    assert found.facts["kills"] >= 2
    assert found.facts["rows"]["finished"] >= 2
    assert found.facts["compared with undisturbed ones"] >= 1
