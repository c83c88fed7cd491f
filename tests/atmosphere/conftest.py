"""One network for the whole session; each test has accounts of its own."""

from __future__ import annotations

import base64
import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.atmosphere.servers import PASSWORD, personal_server, plc_directory
from tests.store.conftest import _own_options, s3, s3_endpoint  # noqa: F401 - fixtures
from tests.store.servers import fault_proxy, ranged_server

import shoal
from shoal.atmosphere import AtmosphereClient, Patience, set_default_client

_NUMBERS = itertools.count()


@shoal.packable
class Pet:
    """What the datasets of these tests are made of."""

    image: NDArray[np.float32]
    label: str
    weight: float = 0.5


def pets(count, size=64):
    return [Pet(np.full(size, number, np.float32), f"pet {number}", number / 4) for number in range(count)]


@pytest.fixture(scope="session")
def plc():
    with plc_directory() as url:
        yield url


@pytest.fixture(scope="session")
def pds(plc):
    with personal_server(plc) as server:
        yield server


@pytest.fixture(autouse=True)
def _own_home(monkeypatch, tmp_path_factory):
    """No test sees the user's session, index or environment."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path_factory.mktemp("home")))
    for name in ("PDS_URL", "PLC_URL", "APPVIEW", "ALLOW_PRIVATE", "HANDLE", "APP_PASSWORD", "SESSION"):
        monkeypatch.delenv(f"SHOAL_{name}", raising=False)
    yield
    set_default_client(None)


@pytest.fixture
def connect(plc):
    """Make clients, of any server, which are closed after the test."""
    made = []

    def call(server, handle=None, **options):
        given = {"allow_private": True, "patience": Patience(tries=4, first_wait=0.05), **options}
        client = AtmosphereClient(getattr(server, "url", server), plc, **given)
        made.append(client)
        known = getattr(server, "sessions", {}).get(handle)
        if known is not None:
            client.import_session(base64.urlsafe_b64encode(known.encode()).decode())
        elif handle is not None:
            client.login(handle, PASSWORD)
        return client

    yield call
    for client in made:
        client.close()


@pytest.fixture
def new_handle(pds):
    """A new account's handle."""

    def call(server=None):
        handle = f"user{next(_NUMBERS)}.test"
        (server or pds).account(handle)
        return handle

    return call


@pytest.fixture
def alice(pds, connect, new_handle):
    """Somebody who publishes."""
    return connect(pds, new_handle())


@pytest.fixture
def bob(pds, connect):
    """Somebody who reads, and has no account."""
    return connect(pds)


@pytest.fixture
def folder(tmp_path):
    """Twenty pets in two shards, with a manifest."""
    shoal.write_samples(pets(20), tmp_path / "pets" / "train-%06d.tar", max_samples=10)
    return str(tmp_path / "pets")


@pytest.fixture
def web():
    """An HTTP server whose objects a test may change."""
    with ranged_server() as server:
        yield server


@pytest.fixture
def faulty(pds):
    """The server behind a proxy that can break things."""
    with fault_proxy(pds.url) as proxy:
        yield proxy
