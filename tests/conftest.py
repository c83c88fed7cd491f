"""Settings every test shares; fixtures live beside the tests that use them."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# `make test` draws the same examples every time, so that a failure is caused by the commit; `make soak` draws new ones,
# and more of them. There are no deadlines, since speed is not tested here. 15 examples instead of Hypothesis' 100:
# there are 200 such tests, and `make test` has twelve minutes.
settings.register_profile("test", deadline=None, max_examples=15, derandomize=True, print_blob=True)
settings.register_profile("soak", deadline=None, max_examples=100, print_blob=True)
settings.register_profile("deep", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "soak" if os.environ.get("SHOAL_SOAK") else "test"))
if settings.default.derandomize:
    # Hypothesis also draws constants that it finds in the source of those of our modules that are loaded, and which
    # these are depends on the tests that ran before in the same process.
    providers.is_local_module_file = lambda path: False


def pytest_configure(config):
    """Set what huggingface_hub reads as it is imported: no network, and a cache that is not the user's."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background jobs like this
        signal.signal(signal.SIGINT, signal.default_int_handler)
    home = tempfile.TemporaryDirectory(prefix="shoal-hf-")
    config.add_cleanup(home.cleanup)
    os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=home.name)


@pytest.fixture
def _cache_folder():
    """Removed after `monkeypatch` has put back what a test may have replaced in `os`."""
    with tempfile.TemporaryDirectory(prefix="shoal-cache-", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.fixture(autouse=True)
def _own_cache(_cache_folder, monkeypatch):
    """Each test starts with an empty cache, and an empty index, of its own and never sees, or fills, the user's."""
    monkeypatch.setenv("SHOAL_CACHE", _cache_folder)
    monkeypatch.setenv("SHOAL_HOME", os.path.join(_cache_folder, "home"))
    for name in ("SHOAL_INDEX", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["manifest", "segments"])
def commits(request, monkeypatch):
    """Both ways in which `ShardWriter` makes shards part of a dataset: by the old manifest, and by segments."""
    from shoal.shard import _writer

    kinds = {"manifest": _writer.JournaledWrite, "segments": _writer.DatasetWrite}
    monkeypatch.setattr(_writer, "_COMMITS", kinds[request.param])
    return request.param


@pytest.fixture(autouse=True)
def _own_formats():
    """Formats that a test, or an example in a docstring, registers are gone after it."""
    yield
    registry = sys.modules.get("shoal.formats._registry")
    if registry is not None:
        for name in set(registry._FORMATS) - set(registry._BUILT_IN):
            del registry._FORMATS[name]


@pytest.fixture
def leaky_peer():
    """For a test that reads with webdataset or datasets: they leave files open, and that is not our failure.

    Our own leaks stay errors everywhere else, so what the peer left is collected before the next test begins. What
    is still in use then is not looked at again: the frameworks' modules have so many objects that it took a second.
    """
    yield
    gc.collect()
    gc.freeze()


_LONG = ("test_static.py", "test_tutorial.py", "test_examples.py", "test_demo.py", "test_ray.py", "test_accessible.py")
"""Files with tests of ten seconds and more: first, so that at the end no process waits for another one's last."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in _LONG)
    for item in items:
        if "leaky_peer" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
