"""Store settings of a test's own: what it configures is gone after it, and the user's cloud settings are not seen."""

from __future__ import annotations

from tests.store.servers import ACCESS_KEY, SECRET_KEY

from shoal.store import _clients, _options, _requests

__all__ = ["keys", "own_settings"]


def keys():
    """The credentials of the test server, as a provider gives them."""
    return {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}


def own_settings(monkeypatch, folder):
    """Begin with no settings at all; ``folder`` is one of the test's own."""
    monkeypatch.setattr(_options, "_CHOSEN", {})
    monkeypatch.setattr(_options, "_LIMITS", {"": _options.ConcurrencyLimit(64)})
    monkeypatch.setattr(_requests, "_NOT_BEFORE", {})
    for name in _clients.AWS_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "no-credentials"))
