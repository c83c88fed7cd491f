"""Every error shoal raises on purpose, in one tree.

::

    ShoalError
    ├── TarError (ValueError)            an archive that cannot be read as it stands
    │   ├── TruncatedError (EOFError)    the bytes end before the archive does
    │   ├── HeaderError                  a member header that is damaged, or not a tar at all
    │   ├── ChecksumError                a member's bytes are not those that were written
    │   ├── DuplicateFieldError          one sample has the same field twice
    │   ├── InterleavedKeyError          a key comes back after other keys
    │   └── UnsupportedMemberError       sparse and other members whose bytes are not the file's bytes
    ├── ShardIndexError (ValueError)     a sidecar that cannot be used
    │   └── StaleIndexError              ... because the tar changed after it was made
    ├── ManifestError (ValueError)       a manifest that cannot be used
    ├── CodecError (ValueError)
    │   ├── DecodeError                  bytes -> value failed
    │   ├── EncodeError                  value -> bytes failed
    │   └── UnsafeCodecError             pickle and its like, not asked for
    ├── WriteError (ValueError)          a sample or a target that cannot be written
    │   └── UnsafeNameError              a key or field that no reader would give back
    ├── SchemaError (ValueError)         a class, a document or a version that makes no schema
    │   └── SchemaMismatchError          a value, or stored data, that does not fit its schema
    ├── LensError (ValueError)           a lens that cannot be made, found or used as asked
    │   └── LensNotFoundError (LookupError)
    ├── ErrorBudgetExceeded              more was skipped than the caller allowed
    ├── WorkerError (RuntimeError)       a process that did part of the work has ended, or failed
    ├── LoaderError                      a loader that cannot go on
    │   ├── LoaderTimeoutError (TimeoutError)  no batch came in time
    │   └── LoaderStateError (ValueError)      a state that is not of this data and order
    ├── SampleKeyError (KeyError)        no such key
    ├── FieldError (KeyError)            no such field or column
    │   └── ColumnError (ValueError)     ... for verbs of webdataset and Hugging Face, where it is a ValueError
    ├── PositionError (IndexError)       no such position
    ├── QueryError (ValueError)          a `where` that cannot be understood
    ├── PatternError (ValueError)        a shard pattern that cannot be expanded
    ├── FormatError (ValueError)         nothing here knows how to open it
    ├── OptionError (ValueError)         an argument outside what it may be
    ├── StoreError (OSError)             bytes could not be read or written
    │   ├── ObjectNotFoundError (FileNotFoundError)
    │   ├── ObjectExistsError (FileExistsError)
    │   ├── ObjectChangedError           another object is there than the one that was opened
    │   ├── AccessDeniedError (PermissionError)
    │   └── StoreTimeoutError (TimeoutError)   no answer came in time
    ├── CatalogError                     an index of datasets that cannot do what was asked
    │   ├── CatalogKeyError (KeyError)             no such dataset, version, schema or lens in it
    │   ├── CatalogConflictError (ValueError)      something else has this name and version
    │   └── CatalogConnectionError (ConnectionError)  its database cannot be reached, or failed
    ├── AtmosphereError (OSError)        the AT Protocol network could not do what was asked
    │   ├── RecordError (ValueError)     a record that does not fit its lexicon
    │   ├── RecordNotFoundError (LookupError)  no such account, record, label or blob
    │   ├── SessionError (PermissionError)     not logged in, or not any more
    │   ├── RateLimitError               the server wants to be asked less often
    │   ├── TooLargeError (ValueError)   more bytes than a record, a blob or a server takes
    │   └── UntrustedError (PermissionError)   an address or code that nobody said yes to
    └── MissingExtraError (ImportError)  an optional package is not installed

    ShoalWarning (UserWarning)           something worth knowing that stops nothing

Each leaf also is the builtin a caller would catch. Constructors take facts (where, expected, found, what to do) and
write the sentence themselves, so every message has the same shape and the facts stay readable by programs.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AccessDeniedError",
    "AtmosphereError",
    "CatalogConflictError",
    "CatalogConnectionError",
    "CatalogError",
    "CatalogKeyError",
    "ChecksumError",
    "CodecError",
    "ColumnError",
    "DecodeError",
    "DuplicateFieldError",
    "EncodeError",
    "ErrorBudgetExceeded",
    "FieldError",
    "FormatError",
    "HeaderError",
    "InterleavedKeyError",
    "LensError",
    "LensNotFoundError",
    "LoaderError",
    "LoaderStateError",
    "LoaderTimeoutError",
    "ManifestError",
    "MissingExtraError",
    "ObjectChangedError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "OptionError",
    "PatternError",
    "PositionError",
    "QueryError",
    "RateLimitError",
    "RecordError",
    "RecordNotFoundError",
    "SampleKeyError",
    "SchemaError",
    "SchemaMismatchError",
    "SessionError",
    "ShardIndexError",
    "ShoalError",
    "ShoalWarning",
    "StaleIndexError",
    "StoreError",
    "StoreTimeoutError",
    "TarError",
    "TooLargeError",
    "TruncatedError",
    "UnsafeCodecError",
    "UnsafeNameError",
    "UnsupportedMemberError",
    "UntrustedError",
    "WorkerError",
    "WriteError",
]


class ShoalError(Exception):
    """The root of the tree: ``except shoal.ShoalError`` catches everything shoal raises on purpose.

    Example:
        >>> error = ShoalError("the header is damaged", shard="a.tar", offset=512, hint="run `shoal verify a.tar`")
        >>> print(error)
        the header is damaged (shard a.tar, byte 512); run `shoal verify a.tar`
        >>> error.offset
        512
    """

    def __init__(
        self,
        problem: str,
        *,
        expected: object = None,
        found: object = None,
        shard: str | None = None,
        key: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected
        self.found = found
        self.shard = shard
        self.key = key
        self.field = field
        self.offset = offset
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem}{self._difference()}{self._place()}{'; ' + self.hint if self.hint else ''}"

    def _difference(self) -> str:
        known = [
            f"{word} {value}"
            for word, value in (("expected", self.expected), ("found", self.found))
            if value is not None
        ]
        return f": {', '.join(known)}" if known else ""

    def _place(self) -> str:
        facts = (("shard", self.shard), ("key", self.key), ("field", self.field), ("byte", self.offset))
        known = [f"{word} {value}" for word, value in facts if value is not None]
        return f" ({', '.join(known)})" if known else ""

    def at(self, *, shard: str | None = None, key: str | None = None, field: str | None = None) -> ShoalError:
        """Fill in the parts of the place that were not known deeper down, and return the same error."""
        self.shard = self.shard if self.shard is not None else shard
        self.key = self.key if self.key is not None else key
        self.field = self.field if self.field is not None else field
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only facts would be lost by the default, and errors cross process boundaries.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[ShoalError], args: tuple[Any, ...], facts: dict[str, Any]) -> ShoalError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class TarError(ShoalError, ValueError):
    """An archive that cannot be read as it stands."""


class TruncatedError(TarError, EOFError):
    """The bytes end before the archive does."""


class HeaderError(TarError):
    """A member header that is damaged, or a file that is not a tar at all."""


class ChecksumError(TarError):
    """A member's bytes are not the ones that were written."""


class DuplicateFieldError(TarError):
    """One sample has the same field twice."""


class InterleavedKeyError(TarError):
    """A key comes back after other keys, so its sample would be given in pieces."""


class UnsupportedMemberError(TarError):
    """A member whose stored bytes are not the file's bytes, such as a sparse file."""


class ShardIndexError(ShoalError, ValueError):
    """A shard index that cannot be used."""


class StaleIndexError(ShardIndexError):
    """A shard index that was made for other bytes than the tar now holds."""


class ManifestError(ShoalError, ValueError):
    """A manifest that cannot be used."""


class CodecError(ShoalError, ValueError):
    """A field's bytes and its value do not fit each other."""


class DecodeError(CodecError):
    """Bytes that are not what their extension says."""


class EncodeError(CodecError):
    """A value that cannot be written under its extension."""


class UnsafeCodecError(CodecError):
    """Data that could run code when read, met without ``allow_pickle=True``."""


class WriteError(ShoalError, ValueError):
    """A sample or a target that cannot be written."""


class UnsafeNameError(WriteError):
    """A key or field that would be read back as something else, or not at all."""


class SchemaError(ShoalError, ValueError):
    """A class, a document or a version that makes no schema."""


class SchemaMismatchError(SchemaError):
    """A value, or stored data, that does not fit its schema; ``field`` is the path to what does not."""


class LensError(ShoalError, ValueError):
    """A lens that cannot be made, found or used as asked."""


class LensNotFoundError(LensError, LookupError):
    """No registered lens leads from the one type to the other."""


class ErrorBudgetExceeded(ShoalError):  # noqa: N818 - names the event, as StopIteration does
    """More was skipped than the caller allowed."""


class WorkerError(ShoalError, RuntimeError):
    """A process that did part of the work has ended, or failed in a way that cannot be told."""


class LoaderError(ShoalError):
    """A loader that cannot go on."""


class LoaderTimeoutError(LoaderError, TimeoutError):
    """No batch came in time."""

    __str__ = ShoalError.__str__


class LoaderStateError(LoaderError, ValueError):
    """A state that is not of this data and order."""


class SampleKeyError(ShoalError, KeyError):
    """No sample has this key."""

    __str__ = ShoalError.__str__  # KeyError would show the repr of the sentence


class FieldError(ShoalError, KeyError):
    """No such field or column."""

    __str__ = ShoalError.__str__


class ColumnError(FieldError, ValueError):
    """No such column, or one too many; a ValueError too, because that is what webdataset and Hugging Face raise."""


class PositionError(ShoalError, IndexError):
    """No sample at this position."""


class QueryError(ShoalError, ValueError):
    """A ``where`` expression that cannot be understood."""


class PatternError(ShoalError, ValueError):
    """A shard pattern that cannot be expanded."""


class FormatError(ShoalError, ValueError):
    """Nothing here knows how to open this."""


class OptionError(ShoalError, ValueError):
    """An argument outside what it may be."""


class StoreError(ShoalError, OSError):
    """Bytes could not be read from or written to a store."""

    __str__ = ShoalError.__str__


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """Nothing is stored under this name."""


class ObjectExistsError(StoreError, FileExistsError):
    """Something is stored under this name already."""


class ObjectChangedError(StoreError):
    """Another object is stored under this name than the one that was opened, or than the one to be replaced."""


class AccessDeniedError(StoreError, PermissionError):
    """The store knows no reason to let this process do this: missing, wrong or expired credentials."""


class StoreTimeoutError(StoreError, TimeoutError):
    """A store gave no answer in time."""


class CatalogError(ShoalError):
    """An index of datasets that cannot do what was asked."""


class CatalogKeyError(CatalogError, KeyError):
    """The index has no such dataset, version, schema or lens."""

    __str__ = ShoalError.__str__


class CatalogConflictError(CatalogError, ValueError):
    """Something else has this name and version already."""


class CatalogConnectionError(CatalogError, ConnectionError):
    """The database of an index cannot be reached, or failed on the way."""

    __str__ = ShoalError.__str__


class AtmosphereError(ShoalError, OSError):
    """The AT Protocol network could not do what was asked."""

    __str__ = ShoalError.__str__


class RecordError(AtmosphereError, ValueError):
    """A record that does not fit its lexicon; ``field`` is the path to what does not."""


class RecordNotFoundError(AtmosphereError, LookupError):
    """No such account, record, label or blob."""


class SessionError(AtmosphereError, PermissionError):
    """Nobody is logged in, the password is wrong, or the session has ended."""


class RateLimitError(AtmosphereError):
    """The server wants to be asked less often than a client may wait for."""


class TooLargeError(AtmosphereError, ValueError):
    """More bytes than a record, a blob or a server takes."""


class UntrustedError(AtmosphereError, PermissionError):
    """An address in a private network, or published code, that nobody said yes to."""


class MissingExtraError(ShoalError, ImportError):
    """An optional package is not installed; the message says which extra brings it."""


class ShoalWarning(UserWarning):
    """Something worth knowing that stops nothing."""
