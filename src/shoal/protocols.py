"""Protocols that users may implement: a class with these members is accepted wherever shoal's own class is.

::

    Packable           a sample that is encoded to bytes and decoded from them
    DataSource         the bytes of shards
    IndexEntry         one dataset in an index
    AbstractIndex      datasets and schemas by name
    AbstractDataStore  the place where an index stores shards
    Resolver           adds another type of reference to ``load_dataset``

``isinstance(value, Packable)`` checks the names of the members only; a type checker checks their types. Arguments
before ``/`` are positional, so they may have any name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import IO, Any, Protocol, Self, runtime_checkable

__all__ = [
    "AbstractDataStore",
    "AbstractIndex",
    "DataFiles",
    "DataSource",
    "IndexEntry",
    "Packable",
    "Resolved",
    "Resolver",
]


@runtime_checkable
class Packable(Protocol):
    """A sample that is encoded to bytes and decoded from them.

    Examples:
        >>> from dataclasses import asdict, dataclass
        >>> import msgspec
        >>> @dataclass
        ... class Word:
        ...     text: str
        ...
        ...     @classmethod
        ...     def from_data(cls, data):
        ...         return cls(**data)
        ...
        ...     @classmethod
        ...     def from_bytes(cls, bs):
        ...         return cls.from_data(msgspec.msgpack.decode(bs))
        ...
        ...     @property
        ...     def packed(self):
        ...         return msgspec.msgpack.encode(asdict(self))
        ...
        ...     @property
        ...     def as_wds(self):
        ...         return {"__key__": self.text, "msgpack": self.packed}
        >>> isinstance(Word("shoal"), Packable), Word.from_bytes(Word("shoal").packed)
        (True, Word(text='shoal'))
    """

    @classmethod
    def from_data(cls, data: dict[str, Any], /) -> Self:
        """Return the sample with these fields."""
        ...

    @classmethod
    def from_bytes(cls, bs: bytes, /) -> Self:
        """Return the sample whose ``packed`` are these bytes."""
        ...

    @property
    def packed(self) -> bytes:
        """The sample as one MessagePack map."""
        ...

    @property
    def as_wds(self) -> dict[str, Any]:
        """The sample as WebDataset writers take it: ``__key__`` and ``msgpack``."""
        ...


@runtime_checkable
class DataSource(Protocol):
    """A source of the bytes of shards, which ``load_dataset`` reads like files.

    The split of a shard is taken from its name, as for files.

    Examples:
        >>> import io, tarfile
        >>> import shoal
        >>> def tar_of(text):
        ...     archive = io.BytesIO()
        ...     with tarfile.open(fileobj=archive, mode="w") as tar:
        ...         member = tarfile.TarInfo("a.txt")
        ...         member.size = len(text)
        ...         tar.addfile(member, io.BytesIO(text))
        ...     return archive.getvalue()
        >>> class Shelf:
        ...     def __init__(self, shards_by_name):
        ...         self._shards = shards_by_name
        ...
        ...     @property
        ...     def shards(self):
        ...         return ((name, self.open_shard(name)) for name in self.list_shards())
        ...
        ...     def list_shards(self):
        ...         return list(self._shards)
        ...
        ...     def open_shard(self, shard_id):
        ...         return io.BytesIO(self._shards[shard_id])
        >>> shelf = Shelf({"train-0.tar": tar_of(b"hello"), "test-0.tar": tar_of(b"bye")})
        >>> isinstance(shelf, DataSource), shoal.load_dataset(shelf, split="test")[0]["txt"]
        (True, 'bye')
    """

    @property
    def shards(self) -> Iterator[tuple[str, IO[bytes]]]:
        """The name and the open file of every shard, in order; each is opened when it is iterated."""
        ...

    def list_shards(self) -> list[str]:
        """Return the names of all shards, in order, without opening them."""
        ...

    def open_shard(self, shard_id: str, /) -> IO[bytes]:
        """Open the file of one shard, at its start. Raises KeyError for a name that is not listed."""
        ...


@runtime_checkable
class IndexEntry(Protocol):
    """One dataset in an index.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Entry:
        ...     name: str
        ...     schema_ref: str
        ...     data_urls: list[str]
        ...     metadata: dict[str, object] | None = None
        >>> isinstance(Entry("pets", "pets@1.0.0", ["pets-{0..9}.tar"]), IndexEntry)
        True
    """

    @property
    def name(self) -> str:
        """The name of the dataset."""
        ...

    @property
    def schema_ref(self) -> str:
        """The reference to the schema of its samples."""
        ...

    @property
    def data_urls(self) -> list[str]:
        """The URLs of its shards; patterns are allowed."""
        ...

    @property
    def metadata(self) -> dict[str, Any] | None:
        """Further metadata, or None."""
        ...


@runtime_checkable
class AbstractIndex(Protocol):
    """Datasets and schemas by name.

    Examples:
        >>> class Drawer:
        ...     def __init__(self):
        ...         self._entries, self._schemas = {}, {}
        ...
        ...     def insert_dataset(self, ds, *, name, schema_ref=None, **options): ...
        ...     def get_dataset(self, ref):
        ...         return self._entries[ref]
        ...
        ...     def list_datasets(self):
        ...         return list(self._entries.values())
        ...
        ...     def publish_schema(self, sample_type, *, version="1.0.0", **options): ...
        ...     def get_schema(self, ref):
        ...         return self._schemas[ref]
        ...
        ...     def list_schemas(self):
        ...         return list(self._schemas.values())
        >>> isinstance(Drawer(), AbstractIndex)
        True
    """

    def insert_dataset(self, ds: Any, *, name: str, schema_ref: str | None = None, **options: Any) -> IndexEntry:
        """Add a dataset under a name; without ``schema_ref`` the schema of its sample type is published too."""
        ...

    def get_dataset(self, ref: str, /) -> IndexEntry:
        """Return the dataset with this name or reference. Raises KeyError."""
        ...

    def list_datasets(self) -> Iterable[IndexEntry]:
        """Return all datasets."""
        ...

    def publish_schema(self, sample_type: type[Any], *, version: str = "1.0.0", **options: Any) -> str:
        """Add the schema of a class; return its reference."""
        ...

    def get_schema(self, ref: str, /) -> dict[str, Any]:
        """Return the schema record with this reference. Raises KeyError."""
        ...

    def list_schemas(self) -> Iterable[dict[str, Any]]:
        """Return all schema records."""
        ...


@runtime_checkable
class AbstractDataStore(Protocol):
    """The place where an index stores shards.

    Examples:
        >>> class Shed:
        ...     def write_shards(self, ds, *, prefix, **options):
        ...         return [f"memory://shed/{prefix}-000000.tar"]
        ...
        ...     def read_url(self, url):
        ...         return url
        ...
        ...     def supports_streaming(self):
        ...         return True
        >>> isinstance(Shed(), AbstractDataStore)
        True
    """

    def write_shards(self, ds: Any, *, prefix: str, **options: Any) -> list[str]:
        """Write a dataset's samples as shards whose names start with ``prefix``; return their URLs."""
        ...

    def read_url(self, url: str, /) -> str:
        """Return the URL to read a shard from, which may differ from the one that was written, such as a signed URL."""
        ...

    def supports_streaming(self) -> bool:
        """Whether byte ranges of a shard can be read without fetching all of it."""
        ...


DataFiles = str | PathLike[str] | Sequence[str | PathLike[str]]
"""A path, pattern, folder or URL, or several of them."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The data that a reference refers to.

    ``files`` are paths, patterns, folders or URLs of a store, or a :class:`DataSource`; either by split, or together,
    with the split in their names. ``sample_type`` is the class of the samples if the user gives none.
    """

    files: DataFiles | DataSource | Mapping[str, DataFiles | DataSource]
    sample_type: type[Any] | None = None


@runtime_checkable
class Resolver(Protocol):
    """Adds another type of reference, such as ``at://...`` or ``@user/data``, to ``load_dataset``.

    A package registers one in the entry point group ``shoal.resolvers``; ``register_resolver`` adds one in this
    process. It is used for references that start with ``@`` or with a scheme that has no store.

    Examples:
        >>> import shoal
        >>> from shoal.dataset import register_resolver
        >>> from shoal.protocols import Resolved
        >>> class Attic:
        ...     def matches(self, reference):
        ...         return reference.startswith("attic://")
        ...
        ...     def resolve(self, reference, *, split=None, data_files=None):
        ...         return Resolved(reference.replace("attic://", "memory://attic/"))
        >>> isinstance(Attic(), Resolver)
        True
        >>> register_resolver("attic", Attic(), replace=True)
        >>> with shoal.ShardWriter("memory://attic/pets/train-%06d.tar") as writer:
        ...     writer.write({"__key__": "a", "txt": "cat"})
        >>> shoal.load_dataset("attic://pets", split="train")[0]["txt"]
        'cat'
    """

    def matches(self, reference: str, /) -> bool:
        """Whether this resolver accepts the reference; called often, so it must not fetch anything."""
        ...

    def resolve(
        self,
        reference: str,
        /,
        *,
        split: str | None = None,
        data_files: DataFiles | Mapping[str, DataFiles] | None = None,
    ) -> Resolved:
        """Return the data that the reference refers to.

        ``split`` is the split that will be read, or None for several or all; other splits may be returned too.
        ``data_files`` are the files that the user passed, relative to the reference, together or by split.
        """
        ...
