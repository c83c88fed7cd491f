"""The fixtures of PLAID's own tests of its storage backends, with this project's small samples."""

from __future__ import annotations

import pytest


@pytest.fixture
def physics():
    from tests.plaid import physics  # not above: PLAID sets up logging when nobody has, and pytest has not yet

    return physics


@pytest.fixture
def infos(physics):
    return physics.infos()


@pytest.fixture
def problem_definition(physics):
    return physics.problem()


@pytest.fixture
def gen_kwargs(physics):
    return {split: {"shards_ids": [ids[:2], ids[2:]]} for split, ids in physics.IDS.items()}


@pytest.fixture
def generator_split_with_kwargs(physics):
    return dict.fromkeys(physics.IDS, physics.generated)


@pytest.fixture
def generator_split(physics):
    return {split: (lambda ids=ids: physics.generated([ids])) for split, ids in physics.IDS.items()}
