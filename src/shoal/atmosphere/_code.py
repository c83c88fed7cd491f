"""Published code: fetched at its commit, shown, and run only after a yes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from shoal.errors import AtmosphereError, LensError, UntrustedError

from ._guard import Guard
from ._records import CodeReference

__all__ = ["CodeOffer", "Trust", "fetch_code", "run_trusted"]

_MOST_BYTES = 1 << 20
_LONGEST = 120
_KEPT = ("PATH", "SSL_CERT_FILE", "https_proxy", "HTTPS_PROXY")


@dataclass(frozen=True, slots=True)
class CodeOffer:
    """Code that somebody published, before anybody runs it: what a yes is said to.

    Example:
        >>> offer = CodeOffer("https://example.org/r.git", "0" * 40, "views.py:shorten", "ab" * 32, "def shorten...")
        >>> print(offer)
        views.py:shorten of https://example.org/r.git at commit 000000000000, sha256 abababababab
    """

    repository: str
    commit: str
    path: str
    sha256: str
    """Of the file."""
    source: str
    """The file itself, to be read."""
    vouched: tuple[str, ...] = ()
    """Who published a verification of this very file: their DIDs."""

    def __str__(self) -> str:
        return f"{self.path} of {self.repository} at commit {self.commit[:12]}, sha256 {self.sha256[:12]}"


Trust = Callable[[CodeOffer], bool] | str | None
"""A function that looks at the offer and says yes or no, or the sha256 of the file that a yes was said to before."""


def fetch_code(code: CodeReference, guard: Guard) -> CodeOffer:
    """The file that a reference names, by git; nothing of it is run. Raises AtmosphereError, UntrustedError."""
    scheme = urlsplit(code.repository).scheme
    if scheme not in ("http", "https", "file") or (scheme == "file" and not guard.allow_private):
        raise UntrustedError("code is fetched from https:// repositories only", found=code.repository[:200])
    if scheme != "file":
        guard.check(code.repository)
    if code.file.startswith(("/", "-")) or ".." in code.file.split("/"):
        raise UntrustedError("a path leads out of its repository", found=code.path)
    with tempfile.TemporaryDirectory(prefix="shoal-code-") as folder:
        _git(["init", "--quiet", folder])
        _git(["-C", folder, "fetch", "--quiet", "--depth", "1", code.repository, code.commit])
        data = _git(["-C", folder, "show", f"{code.commit}:{code.file}"])
    if len(data) > _MOST_BYTES:
        raise UntrustedError("published code is too large to be looked at", expected=f"at most {_MOST_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise LensError("published code is no text", found=code.path) from error
    return CodeOffer(code.repository, code.commit, code.path, hashlib.sha256(data).hexdigest(), text)


def _git(arguments: list[str]) -> bytes:
    """Run git with no shell, no questions, no transports that run programs, and none of the user's settings."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    settings = {
        "GIT_ALLOW_PROTOCOL": "https:http:file",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "HOME": os.devnull,
    }
    command = ["git", "-c", "http.followRedirects=false", "-c", "safe.directory=*", *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program, no shell
            command, env={**kept, **settings}, capture_output=True, timeout=_LONGEST, check=False
        )
    except FileNotFoundError as error:
        raise AtmosphereError("published code is fetched by git, which is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise AtmosphereError("a repository gave no answer in time", found=arguments[-2]) from error
    if done.returncode != 0:
        words = " ".join(done.stderr.decode(errors="replace").split())[:300]
        raise AtmosphereError("published code could not be fetched", found=words)
    return done.stdout


def run_trusted(offer: CodeOffer, trust: Trust) -> Any:
    """Run the code, and give what the path names in it. Raises UntrustedError without a yes."""
    said = trust == offer.sha256 if isinstance(trust, str) else trust is not None and trust(offer) is True
    if not said:
        raise UntrustedError(
            "published code runs only after a yes",
            expected=f"trust={offer.sha256!r}, or a function that looks at the offer",
            found=f"{offer.path} of {offer.repository} at commit {offer.commit}",
            hint="read the code, then say yes to its hash",
        )
    module = types.ModuleType(f"shoal_published_{offer.sha256[:12]}")
    module.__file__ = offer.path
    exec(compile(offer.source, f"<{offer}>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the yes above
    name = offer.path.rpartition(":")[2]
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise LensError("the published code has no such function", found=name) from error
