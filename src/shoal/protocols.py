"""What users may implement: a class with these members works wherever shoal's own does, without inheriting anything.

::

    Packable           a sample that turns into bytes and back
    DataSource         where the bytes of shards come from
    IndexEntry         one dataset in an index
    AbstractIndex      datasets and schemas by name
    AbstractDataStore  where an index keeps shards
    Resolver           what makes ``load_dataset`` understand another kind of reference

``isinstance(value, Packable)`` and its like look at the names of the members only; a type checker looks at their types.
An argument before ``/`` is passed by position, so it may have any name.
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
    """A sample that turns into bytes and back.

    Example:
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
        """The sample with these fields."""
        ...

    @classmethod
    def from_bytes(cls, bs: bytes, /) -> Self:
        """The sample that ``packed`` gave as these bytes."""
        ...

    @property
    def packed(self) -> bytes:
        """The sample as one MessagePack map."""
        ...

    @property
    def as_wds(self) -> dict[str, Any]:
        """The sample as a WebDataset writer takes it: ``__key__`` and ``msgpack``."""
        ...


@runtime_checkable
class DataSource(Protocol):
    """Where the bytes of shards come from.

    ``load_dataset`` reads one as it reads files. A shard's name says its split, as a file's does.

    Example:
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
        ...         self._held = shards_by_name
        ...
        ...     @property
        ...     def shards(self):
        ...         return ((name, self.open_shard(name)) for name in self.list_shards())
        ...
        ...     def list_shards(self):
        ...         return list(self._held)
        ...
        ...     def open_shard(self, shard_id):
        ...         return io.BytesIO(self._held[shard_id])
        >>> shelf = Shelf({"train-0.tar": tar_of(b"hello"), "test-0.tar": tar_of(b"bye")})
        >>> isinstance(shelf, DataSource), shoal.load_dataset(shelf, split="test")[0]["txt"]
        (True, 'bye')
    """

    @property
    def shards(self) -> Iterator[tuple[str, IO[bytes]]]:
        """Every shard's name with its open bytes, in order; each is opened when it is reached."""
        ...

    def list_shards(self) -> list[str]:
        """The names of all shards, in order; nothing is opened."""
        ...

    def open_shard(self, shard_id: str, /) -> IO[bytes]:
        """The bytes of one shard, from its start. Raises KeyError for a name that is not listed."""
        ...


@runtime_checkable
class IndexEntry(Protocol):
    """One dataset in an index.

    Example:
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
        """What people call the dataset."""
        ...

    @property
    def schema_ref(self) -> str:
        """Where the schema of its samples is found."""
        ...

    @property
    def data_urls(self) -> list[str]:
        """Its shards; patterns are allowed."""
        ...

    @property
    def metadata(self) -> dict[str, Any] | None:
        """What else is said of it; None when nothing is."""
        ...


@runtime_checkable
class AbstractIndex(Protocol):
    """Datasets and schemas by name.

    Example:
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
        """Write a dataset down under a name; without ``schema_ref`` its sample type's schema is published too."""
        ...

    def get_dataset(self, ref: str, /) -> IndexEntry:
        """The dataset with this name or reference. Raises KeyError."""
        ...

    def list_datasets(self) -> Iterable[IndexEntry]:
        """All datasets."""
        ...

    def publish_schema(self, sample_type: type[Any], *, version: str = "1.0.0", **options: Any) -> str:
        """Write the schema of a class down; returns the reference to it."""
        ...

    def get_schema(self, ref: str, /) -> dict[str, Any]:
        """The schema record with this reference. Raises KeyError."""
        ...

    def list_schemas(self) -> Iterable[dict[str, Any]]:
        """All schema records."""
        ...


@runtime_checkable
class AbstractDataStore(Protocol):
    """Where an index keeps shards.

    Example:
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
        """Write a dataset's samples as shards whose names begin with ``prefix``; returns their URLs."""
        ...

    def read_url(self, url: str, /) -> str:
        """The URL to read a shard by, where that is not the one it was written under: a signed one, for example."""
        ...

    def supports_streaming(self) -> bool:
        """Whether parts of a shard can be read without fetching all of it."""
        ...


DataFiles = str | PathLike[str] | Sequence[str | PathLike[str]]
"""A path, pattern, folder or URL, or several of them."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a reference stands for.

    ``files`` are paths, patterns, folders or URLs that a store serves, or a :class:`DataSource`; by split, or all
    together, and then their names say the split. ``sample_type`` is the class of the samples, where the reference says
    one and the user says none.
    """

    files: DataFiles | DataSource | Mapping[str, DataFiles | DataSource]
    sample_type: type[Any] | None = None


@runtime_checkable
class Resolver(Protocol):
    """What makes ``load_dataset`` understand another kind of reference, such as ``at://...`` or ``@user/data``.

    A package brings one by the entry point group ``shoal.resolvers``; ``register_resolver`` adds one to this process.
    It is asked about a text that begins with ``@`` or with a scheme that no store serves.

    Example:
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
        """Whether this resolver understands the reference; asked often, so nothing is fetched for it."""
        ...

    def resolve(
        self,
        reference: str,
        /,
        *,
        split: str | None = None,
        data_files: DataFiles | Mapping[str, DataFiles] | None = None,
    ) -> Resolved:
        """What the reference stands for.

        ``split`` is the one split that will be read, None for several or all; other splits may be given back too.
        ``data_files`` is what the user passed: files relative to the reference, in all or by split.
        """
        ...
