"""All errors that shoal raises, in one tree.

::

    ShoalError
    ├── TarError (ValueError)            an archive that cannot be read
    │   ├── TruncatedError (EOFError)    the data ends before the archive does
    │   ├── HeaderError                  a member header is damaged, or the file is not a tar
    │   ├── ChecksumError                the bytes of a member differ from its checksum
    │   ├── DuplicateFieldError          a sample has the same field twice
    │   ├── InterleavedKeyError          a key occurs again after other keys
    │   └── UnsupportedMemberError       sparse and other members whose bytes are not the file's content
    ├── ShardIndexError (ValueError)     a shard index that cannot be used
    │   └── StaleIndexError              ... because the tar changed after it was made
    ├── ManifestError (ValueError)       a manifest that cannot be used
    ├── CodecError (ValueError)
    │   ├── DecodeError                  bytes -> value failed
    │   ├── EncodeError                  value -> bytes failed
    │   └── UnsafeCodecError             pickle and other unsafe data, not allowed by default
    ├── WriteError (ValueError)          a sample or a target that cannot be written
    │   └── UnsafeNameError              a key or field that would not be read back
    ├── SchemaError (ValueError)         a class, a document or a version that is not a valid schema
    │   └── SchemaMismatchError          a value, or stored data, that does not fit its schema
    ├── LensError (ValueError)           a lens that cannot be made, looked up or used
    │   └── LensNotFoundError (LookupError)
    ├── ErrorBudgetExceeded              more samples were skipped than allowed
    ├── WorkerError (RuntimeError)       a worker process ended or failed
    ├── LoaderError                      a loader that cannot continue
    │   ├── LoaderTimeoutError (TimeoutError)  a batch was not ready in time
    │   └── LoaderStateError (ValueError)      a state of other data or of another order
    ├── SampleKeyError (KeyError)        the key does not exist
    ├── FieldError (KeyError)            the field or column does not exist
    │   └── ColumnError (ValueError)     ... in methods of webdataset and Hugging Face, which raise a ValueError
    ├── PositionError (IndexError)       the index is out of range
    ├── QueryError (ValueError)          a `where` expression that cannot be parsed
    ├── PatternError (ValueError)        a shard pattern that cannot be expanded
    ├── FormatError (ValueError)         data of an unknown format
    ├── OptionError (ValueError)         an invalid argument
    ├── StoreError (OSError)             bytes could not be read or written
    │   ├── ObjectNotFoundError (FileNotFoundError)
    │   ├── ObjectExistsError (FileExistsError)
    │   ├── ObjectChangedError           the object was replaced after it was opened
    │   ├── AccessDeniedError (PermissionError)
    │   └── StoreTimeoutError (TimeoutError)   the store did not respond in time
    ├── CatalogError                     a catalog operation failed
    │   ├── CatalogKeyError (KeyError)             the catalog does not have this dataset, version, schema or lens
    │   ├── CatalogConflictError (ValueError)      the name and version are in use for other content
    │   └── CatalogConnectionError (ConnectionError)  its database cannot be reached, or failed
    ├── AtmosphereError (OSError)        an operation on the AT Protocol network failed
    │   ├── RecordError (ValueError)     a record that does not fit its lexicon
    │   ├── RecordNotFoundError (LookupError)  the account, record, label or blob does not exist
    │   ├── SessionError (PermissionError)     not logged in, or the session has ended
    │   ├── RateLimitError               the server limits the request rate for too long
    │   ├── TooLargeError (ValueError)   more bytes than a record, a blob or a server accepts
    │   └── UntrustedError (PermissionError)   an address or code that was not allowed
    └── MissingExtraError (ImportError)  an optional package is not installed

    ShoalWarning (UserWarning)           a warning

Most errors are also the builtin that a caller would catch. Constructors take facts (where, what was expected and found,
and a hint) and format the message from them, so that all messages have one form and programs can read the facts.
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
    """Base class of all errors that shoal raises.

    Examples:
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
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.problem}{self._format_difference()}{self._format_location()}{hint}"

    def _format_difference(self) -> str:
        facts = (("expected", self.expected), ("found", self.found))
        parts = [f"{name} {value}" for name, value in facts if value is not None]
        return f": {', '.join(parts)}" if parts else ""

    def _format_location(self) -> str:
        facts = (("shard", self.shard), ("key", self.key), ("field", self.field), ("byte", self.offset))
        parts = [f"{name} {value}" for name, value in facts if value is not None]
        return f" ({', '.join(parts)})" if parts else ""

    def at(self, *, shard: str | None = None, key: str | None = None, field: str | None = None) -> ShoalError:
        """Fill in the parts of the location that are not set, and return the same error."""
        self.shard = self.shard if self.shard is not None else shard
        self.key = self.key if self.key is not None else key
        self.field = self.field if self.field is not None else field
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # The default loses keyword-only arguments, and errors are sent between processes.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[ShoalError], args: tuple[Any, ...], facts: dict[str, Any]) -> ShoalError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class TarError(ShoalError, ValueError):
    """An archive that cannot be read."""


class TruncatedError(TarError, EOFError):
    """The data ends before the archive does."""


class HeaderError(TarError):
    """A member header is damaged, or the file is not a tar."""


class ChecksumError(TarError):
    """The bytes of a member differ from its checksum."""


class DuplicateFieldError(TarError):
    """A sample has the same field twice."""


class InterleavedKeyError(TarError):
    """A key occurs again after other keys, so its sample would be split."""


class UnsupportedMemberError(TarError):
    """A member whose stored bytes are not the file's content, such as a sparse file."""


class ShardIndexError(ShoalError, ValueError):
    """A shard index that cannot be used."""


class StaleIndexError(ShardIndexError):
    """A shard index that was made for an earlier state of the tar."""


class ManifestError(ShoalError, ValueError):
    """A manifest that cannot be used."""


class CodecError(ShoalError, ValueError):
    """A field that cannot be decoded or encoded."""


class DecodeError(CodecError):
    """Bytes that are not valid for their extension."""


class EncodeError(CodecError):
    """A value that cannot be encoded for its extension."""


class UnsafeCodecError(CodecError):
    """Data that could run code when it is read, without ``allow_pickle=True``."""


class WriteError(ShoalError, ValueError):
    """A sample or a target that cannot be written."""


class UnsafeNameError(WriteError):
    """A key or field that would be read under another name, or not at all."""


class SchemaError(ShoalError, ValueError):
    """A class, a document or a version that is not a valid schema."""


class SchemaMismatchError(SchemaError):
    """A value, or stored data, that does not fit its schema; ``field`` is the path to the value."""


class LensError(ShoalError, ValueError):
    """A lens that cannot be made, looked up or used."""


class LensNotFoundError(LensError, LookupError):
    """No registered lens leads from one type to the other."""


class ErrorBudgetExceeded(ShoalError):  # noqa: N818 - names the event, as StopIteration does
    """More samples were skipped than allowed."""


class WorkerError(ShoalError, RuntimeError):
    """A worker process ended, or failed with an error that cannot be sent back."""


class LoaderError(ShoalError):
    """A loader that cannot continue."""


class LoaderTimeoutError(LoaderError, TimeoutError):
    """A batch was not ready in time."""

    __str__ = ShoalError.__str__


class LoaderStateError(LoaderError, ValueError):
    """A loader state of other data or of another order."""


class SampleKeyError(ShoalError, KeyError):
    """The key does not exist."""

    __str__ = ShoalError.__str__  # KeyError would show the repr of the message


class FieldError(ShoalError, KeyError):
    """The field or column does not exist."""

    __str__ = ShoalError.__str__


class ColumnError(FieldError, ValueError):
    """The column does not exist, or exists already; also a ValueError, as webdataset and Hugging Face raise."""


class PositionError(ShoalError, IndexError):
    """The index is out of range."""


class QueryError(ShoalError, ValueError):
    """A ``where`` expression that cannot be parsed."""


class PatternError(ShoalError, ValueError):
    """A shard pattern that cannot be expanded."""


class FormatError(ShoalError, ValueError):
    """Data of an unknown format."""


class OptionError(ShoalError, ValueError):
    """An invalid argument."""


class StoreError(ShoalError, OSError):
    """Bytes could not be read from or written to a store."""

    __str__ = ShoalError.__str__


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """The object does not exist."""


class ObjectExistsError(StoreError, FileExistsError):
    """The object exists already."""


class ObjectChangedError(StoreError):
    """The object was replaced after it was opened, or since the version to be replaced."""


class AccessDeniedError(StoreError, PermissionError):
    """Access was denied: credentials are missing, wrong or expired."""


class StoreTimeoutError(StoreError, TimeoutError):
    """A store did not respond in time."""


class CatalogError(ShoalError):
    """A catalog operation failed."""


class CatalogKeyError(CatalogError, KeyError):
    """The catalog does not have this dataset, version, schema or lens."""

    __str__ = ShoalError.__str__


class CatalogConflictError(CatalogError, ValueError):
    """The name and version are in use for other content."""


class CatalogConnectionError(CatalogError, ConnectionError):
    """The database of a catalog cannot be reached, or failed."""

    __str__ = ShoalError.__str__


class AtmosphereError(ShoalError, OSError):
    """An operation on the AT Protocol network failed."""

    __str__ = ShoalError.__str__


class RecordError(AtmosphereError, ValueError):
    """A record that does not fit its lexicon; ``field`` is the path to the value."""


class RecordNotFoundError(AtmosphereError, LookupError):
    """The account, record, label or blob does not exist."""


class SessionError(AtmosphereError, PermissionError):
    """Not logged in, wrong password, or the session has ended."""


class RateLimitError(AtmosphereError):
    """The server limits the request rate for longer than the client may wait."""


class TooLargeError(AtmosphereError, ValueError):
    """More bytes than a record, a blob or a server accepts."""


class UntrustedError(AtmosphereError, PermissionError):
    """An address in a private network, or published code, that was not allowed."""


class MissingExtraError(ShoalError, ImportError):
    """An optional package is not installed; the message names the extra that installs it."""


class ShoalWarning(UserWarning):
    """A warning from shoal."""
