"""What the tests of the PLAID backend share."""

from __future__ import annotations

import pytest
from tests.hub.conftest import hub, pytest_collection_modifyitems  # noqa: F401 - a fixture, and what goes with it


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory):
    """A small dataset that PLAID saved with the backend. Nobody changes it."""
    from tests.plaid import physics  # not above: PLAID sets up logging when nobody has, and pytest has not yet

    return physics.saved(tmp_path_factory.mktemp("plaid") / "dataset", pb_defs={"problem": physics.problem()})
