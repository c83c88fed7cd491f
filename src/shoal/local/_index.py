"""`LocalIndex`, the choice of its database, the default index, and ``@local`` references."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

from shoal.errors import CatalogKeyError, OptionError
from shoal.protocols import AbstractDataStore, DataFiles, Resolved
from shoal.sample._lens import Lens
from shoal.schema._schema import Schema
from shoal.store._url import scheme_of

from . import _datasets, _schemas_lenses
from ._backend import Backend, MemoryBackend, Transaction
from ._datasets import Bounds, When, query_of
from ._describe import describe
from ._entry import Entry, Storage, StoredShard, check_description, check_metadata, check_tags
from ._refs import PREFIXES, Reference, check_name, check_version, parse_artifact_ref, parse_reference
from ._schemas_lenses import LensRecord
from ._sqlite import SqliteBackend

__all__ = ["LocalIndex", "LocalResolver", "default_index", "resolver", "set_default_index"]

_ID = ("about", "id")
_CHOSEN: list[LocalIndex] = []
_REDIS = ("redis", "rediss", "unix")
_POSTGRES = ("postgresql", "postgres")


class LocalIndex:
    """Datasets, schemas and lenses by name.

    Kept in the place that is named: a path (SQLite), ``redis://...``, ``postgresql://...``, a ``redis`` client, or a
    Redis ``host`` and ``port``; else in the one that ``SHOAL_INDEX`` names; else in the Redis of ``REDIS_URL``; else in
    a SQLite file of the user's. All of them behave alike. Nothing is opened before it is needed. ``namespace`` keeps
    several indexes apart in one Redis or PostgreSQL.

    Examples:
        >>> import shoal
        >>> from shoal.local import LocalIndex
        >>> ds = shoal.write_samples([{"txt": "a cat"}, {"txt": "a dog"}], "memory://doc/index/pets")
        >>> index = LocalIndex("memory://")
        >>> index.insert_dataset(ds, name="pets", tags=["animals"]).reference
        'pets@1.0.0'
        >>> index.get_dataset("pets").open()[0]["txt"]
        'a cat'
        >>> [entry.name for entry in index.search("pet*", tags=["animals"])]
        ['pets']
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | None = None,
        *,
        redis: Any = None,
        host: str | None = None,
        port: int | None = None,
        namespace: str = "shoal",
    ) -> None:
        if not namespace.isidentifier() or not namespace.isascii() or len(namespace) > 40:
            raise OptionError("a namespace is a short name", expected="letters, digits and _", found=repr(namespace))
        self._backend = backend_for(location, redis, host, port, namespace, os.environ)
        self._namespace = namespace

    def __repr__(self) -> str:
        return f"<LocalIndex {self._backend.shown}>"

    def __reduce__(self) -> tuple[Callable[..., LocalIndex], tuple[str, str]]:
        """The same index for another process, whatever that one's environment says."""
        location = getattr(self._backend, "location", None)
        if location is None:
            raise TypeError(f"{self!r} cannot be sent to another process; name a path or a URL")
        return _open_index, (location, self._namespace)

    def insert_dataset(
        self,
        ds: Any,
        *,
        name: str,
        schema_ref: str | None = None,
        version: str | None = None,
        description: str | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        data_store: AbstractDataStore | None = None,
        hashed: bool = True,
        **options: Any,
    ) -> Entry:
        """Write down a dataset that lies somewhere: a :class:`shoal.Dataset`, a path, a pattern, a URL.

        Its bytes stay where they are, and are read once to hash them; ``hashed=False`` leaves that out, and then the
        content's address is that of its URLs and their versions. With ``data_store`` the samples are first written
        there, with ``options`` for it. ``Repo.insert`` does both in one step, safe against crashes.

        Without ``version`` it is the next one: a patch for other words about the same data, minor for other data, major
        where the type of samples changed so that old ones cannot be read. The same once more changes nothing. What is
        not said again, the description and for the same data the metadata, stays as it was.

        Raises:
            OptionError: The name, a tag, the metadata or the dataset cannot be kept.
            CatalogConflictError: This version is something else already.
        """
        spelled = check_name(name)
        said = self._check_words(description, tags, metadata, version)
        if data_store is not None:
            schema = _schema_of(ds)
            ds = data_store.write_shards(ds, prefix=spelled, **options)
        elif options:
            raise TypeError(f"insert_dataset has no option {min(options)!r}")
        else:
            schema = None
        found = describe(ds, hashed=hashed)
        storage, place = found.storage, f"{found.storage.endpoint or ''} {found.storage.root}"
        draft = _datasets.EntryDraft(spelled, found.cid, storage, found.shards, place, **said)
        return self._record(draft, schema or found.schema, schema_ref)

    def record_dataset(
        self,
        *,
        name: str,
        cid: str,
        storage: Storage,
        shards: Iterable[StoredShard],
        schema_ref: str | None = None,
        version: str | None = None,
        description: str | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Write down a dataset all of which is known already, as somebody else's record tells it: nothing is looked at.

        Versions and errors are as for `insert_dataset`.
        """
        said = self._check_words(description, tags, metadata, version)
        place = f"{storage.endpoint or ''} {storage.root}"
        draft = _datasets.EntryDraft(check_name(name), cid, storage, tuple(shards), place, **said)
        return self._record(draft, None, schema_ref)

    def _check_words(
        self, description: str | None, tags: Iterable[str], metadata: Mapping[str, Any] | None, version: str | None
    ) -> dict[str, Any]:
        """Check description, tags, metadata and version before anything is written."""
        return {
            "description": None if description is None else check_description(description),
            "tags": check_tags(tags),
            "metadata": check_metadata(metadata),
            "version": None if version is None else check_version(version),
        }

    def _record(self, draft: _datasets.EntryDraft, schema: Schema | None, schema_ref: str | None) -> Entry:
        """Record entry and schema in one transaction."""
        kept = None if schema is None or schema_ref is not None else _schemas_lenses.check_schema(schema)
        ref = None if schema_ref is None else self._known_ref(schema_ref)
        now = time.time()

        def change(records: Transaction) -> Entry:
            found = ref if kept is None else _schemas_lenses.publish_schema(records, kept, None, now)
            return _datasets.record(records, replace(draft, schema_ref=found or ""), now)

        return self._own(self._backend.transact(change))

    def _known_ref(self, ref: str) -> str:
        """The whole reference of a schema that is there; one of another network is kept as it is."""
        return ref if ref.startswith("at://") else str(self.get_schema(ref)["$ref"])

    def _own(self, entry: Entry) -> Entry:
        return replace(entry, _index=self)

    def get_dataset(self, ref: str, /) -> Entry:
        """The dataset of this reference: ``name``, ``name@1.2.0``, ``name@latest`` or ``@local/name``.

        Raises CatalogKeyError, which is a KeyError, when there is none.
        """
        return self._own(_datasets.get(self._backend, parse_reference(ref)))

    def list_datasets(self, prefix: str = "") -> Iterator[Entry]:
        """The newest version of every dataset, by name; those whose name begins with ``prefix``."""
        return map(self._own, _datasets.list_entries(self._backend, prefix))

    def history(self, name: str) -> list[Entry]:
        """Every version of a dataset, in the order they came. Raises CatalogKeyError."""
        return [self._own(entry) for entry in _datasets.history(self._backend, parse_reference(name).name)]

    def find_content(self, cid: str) -> list[Entry]:
        """Every version, of any name, that stands for the content with this address."""
        return [self._own(entry) for entry in _datasets.entries_of(self._backend, cid)]

    def label(self, ref: str, name: str, *, version: str | None = None, tags: Iterable[str] = ()) -> Entry:
        """Give a version another name too: nothing is copied. Raises CatalogKeyError, CatalogConflictError."""
        asked, to, kept, now = parse_reference(ref), check_name(name), check_tags(tags), time.time()
        chosen = None if version is None else check_version(version)
        return self._own(self._backend.transact(lambda change: _datasets.label(change, asked, to, chosen, kept, now)))

    def rename(self, name: str, to: str) -> Entry:
        """Give a dataset, with its history, another name. Raises CatalogKeyError, CatalogConflictError."""
        old, new = parse_reference(name).name, check_name(to)
        return self._own(self._backend.transact(lambda change: _datasets.rename(change, old, new)))

    def delete(self, ref: str) -> int:
        """Forget a version (``name@1.2.0``), or all of a name; returns how many versions. Raises CatalogKeyError.

        The bytes stay where they are; those of a :class:`Repo` that no version stands for go with its ``gc``.
        """
        return self._backend.transact(lambda change: _datasets.delete(change, parse_reference(ref)))

    def tag(self, name: str, *tags: str) -> Entry:
        """Add tags to a dataset. Raises CatalogKeyError, or OptionError for what is no tag."""
        added = check_tags(tags)
        return self._retag(name, lambda before: check_tags((*before, *added)))

    def untag(self, name: str, *tags: str) -> Entry:
        """Remove tags of a dataset; one that it has not is no error. Raises CatalogKeyError."""
        gone = set(check_tags(tags))
        return self._retag(name, lambda before: tuple(tag for tag in before if tag not in gone))

    def _retag(self, name: str, choose: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Entry:
        spelled = parse_reference(name).name
        return self._own(self._backend.transact(lambda change: _datasets.retag(change, spelled, choose)))

    def search(
        self,
        text: str | None = None,
        *,
        tags: Iterable[str] = (),
        schema: str | None = None,
        fields: Iterable[str] = (),
        samples: Bounds = (None, None),
        bytes: Bounds = (None, None),  # noqa: A002 - as the entry calls it
        created: tuple[When, When] = (None, None),
        limit: int = 50,
        offset: int = 0,
    ) -> list[Entry]:
        """The datasets whose newest version fits all that is asked, those that changed last first.

        ``text`` is words that must all be in the name, the description, the tags, the names of schema and fields or the
        metadata; ``photo*`` is any word that begins so. ``tags`` and ``fields`` must all be there; ``schema`` is
        ``Name`` or ``Name@1.0.0``. ``samples``, ``bytes`` and ``created`` are pairs of the lowest and the highest, None
        for no bound. Raises OptionError for what cannot be meant.
        """
        query = query_of(text, tags, schema, fields, samples, bytes, created, limit, offset)
        names = self._backend.search(query)
        return [self._own(entry) for entry in _datasets.read_many(self._backend, [Reference(name) for name in names])]

    def __contains__(self, ref: object) -> bool:
        try:
            return isinstance(ref, str) and bool(self.get_dataset(ref))
        except (CatalogKeyError, OptionError):
            return False

    def __len__(self) -> int:
        return self._backend.count("head")

    def publish_schema(self, sample_type: type[Any] | Schema, *, version: str | None = None, **options: Any) -> str:
        """Write down the schema of a class; returns the reference to it.

        The same content again gives the same reference. Without ``version`` a changed schema gets the next one, by what
        changed. Raises SchemaError for a version that has another content already, or is too low for what changed.

        Examples:
            >>> import shoal
            >>> @shoal.packable
            ... class Pet:
            ...     name: str
            >>> index = LocalIndex("memory://")
            >>> index.publish_schema(Pet)
            'shoal://local/schema/Pet@1.0.0'
        """
        if options:
            raise TypeError(f"publish_schema has no option {min(options)!r}")
        schema, now = _schemas_lenses.check_schema(sample_type), time.time()
        return self._backend.transact(lambda change: _schemas_lenses.publish_schema(change, schema, version, now))

    def get_schema(self, ref: str, /) -> dict[str, Any]:
        """The record of a schema: ``name``, ``version``, ``schema`` as JSON Schema and more. Raises CatalogKeyError."""
        return _schemas_lenses.get_schema_record(self._backend, ref).shown()

    def get_schema_type(self, ref: str, /) -> type[Any]:
        """A class with this schema, ready to be used; the same one for the same schema. Raises CatalogKeyError."""
        return _schemas_lenses.schema_class(_schemas_lenses.get_schema_record(self._backend, ref))

    def list_schemas(self) -> Iterator[dict[str, Any]]:
        """The records of all schemas, every version."""
        return (record.shown() for record in _schemas_lenses.list_schema_records(self._backend))

    def store_lens(self, lens: Lens[Any, Any], *, name: str | None = None, version: str | None = None) -> str:
        """Write down where a lens's code is, with a hash of it, and publish the schemas of both types.

        Only a lens that can be imported from a module is kept: what is kept is then what runs. Raises LensError.
        """
        draft = _schemas_lenses.draft_of(lens, name)
        now = time.time()
        return self._backend.transact(lambda change: _schemas_lenses.publish_lens(change, draft, version, now))

    def get_lens(self, ref: str, /) -> LensRecord:
        """What is known of a lens; nothing is imported. Raises CatalogKeyError."""
        return _schemas_lenses.get_lens_record(self._backend, parse_artifact_ref("lens", ref))

    def list_lenses(self) -> Iterator[LensRecord]:
        """All lenses, every version."""
        return _schemas_lenses.list_lens_records(self._backend)

    def load_lens(self, ref: str, /) -> Lens[Any, Any]:
        """Import a lens. Raises LensError when the code there is not the code that was stored."""
        return _schemas_lenses.load_lens(self.get_lens(ref))

    def find_lenses(self, source: str, view: str) -> tuple[LensRecord, ...]:
        """The shortest way over stored lenses from one schema to another, by their references.

        Raises LensNotFoundError when there is none, LensError when several are equally short.
        """
        ends = (str(self.get_schema(ref)["$ref"]) for ref in (source, view))
        return _schemas_lenses.find_path(self.list_lenses(), *ends)

    def find_lens(self, source: str, view: str) -> Lens[Any, Any]:
        """The lenses of `find_lenses`, imported and compose_lenses."""
        return _schemas_lenses.compose_lenses(self.find_lenses(source, view))

    @property
    def _id(self) -> str:
        """An id of this index, the same for every process and URL by which it is opened."""

        def change(records: Transaction) -> bytes:
            found = records.get(_ID)
            if found is None:
                found = uuid.uuid4().hex.encode()
                records.put(_ID, found)
            return found

        found = self._backend.get_many([_ID])[0]
        return (found if found is not None else self._backend.transact(change)).decode()

    def close(self) -> None:
        """Let go of the database; the next use reaches it again."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _open_index(location: str, namespace: str) -> LocalIndex:
    return LocalIndex(location, namespace=namespace)


def _schema_of(ds: Any) -> Schema | None:
    schema = getattr(ds, "schema", None)
    return schema if isinstance(schema, Schema) else None


def default_index() -> LocalIndex:
    """The index that ``load_dataset("@local/name")`` asks: the one that was set, else ``LocalIndex()``.

    Examples:
        >>> from shoal.local import LocalIndex, default_index, set_default_index
        >>> set_default_index(LocalIndex("memory://"))
        >>> default_index()
        <LocalIndex memory://>
        >>> set_default_index(None)
    """
    return _CHOSEN[0] if _CHOSEN else LocalIndex()


def set_default_index(index: LocalIndex | None) -> None:
    """Let `default_index` of this process be this one; None for the usual one again."""
    _CHOSEN[:] = [] if index is None else [index]


def backend_for(
    location: str | os.PathLike[str] | None,
    redis: Any,
    host: str | None,
    port: int | None,
    namespace: str,
    environ: Mapping[str, str],
) -> Backend:
    """The database for these arguments; nothing is opened. Raises OptionError when they say two things."""
    given = [
        name
        for name, value in (("a location", location), ("redis", redis), ("host or port", host or port))
        if value is not None
    ]
    if len(given) > 1:
        raise OptionError("an index is in one place", expected="one of them", found=" and ".join(given))
    if redis is not None:
        return _redis_backend(client=redis, namespace=namespace)
    if host is not None or port is not None:
        return _redis_backend(url=f"redis://{host or '127.0.0.1'}:{port or 6379}/0", namespace=namespace)
    if location is None:
        location = environ.get("SHOAL_INDEX") or environ.get("REDIS_URL") or default_path(environ)
    return _backend_at(os.fspath(location), namespace)


def _backend_at(location: str, namespace: str) -> Backend:
    scheme = scheme_of(location)
    if scheme in _REDIS:
        return _redis_backend(url=location, namespace=namespace)
    if scheme in _POSTGRES:
        from ._postgres import PostgresBackend

        return PostgresBackend(location, namespace)
    if scheme == "memory":
        return MemoryBackend()
    path = location.removeprefix("sqlite:///") if scheme == "sqlite" else location
    if scheme not in ("file", "sqlite") or not path:
        expected = "a path, redis://, rediss://, postgresql:// or memory://"
        raise OptionError("an index cannot be kept there", expected=expected, found=f"{scheme}://...")
    return SqliteBackend(os.path.abspath(os.path.expanduser(path.removeprefix("file://"))))


def _redis_backend(*, url: str | None = None, client: Any = None, namespace: str) -> Backend:
    from ._redis import RedisBackend

    return RedisBackend(url=url, client=client, namespace=namespace)


def default_path(environ: Mapping[str, str]) -> str:
    """The user's own index: ``index.db`` in ``$SHOAL_HOME``, else in the platform's place for data."""
    if chosen := environ.get("SHOAL_HOME"):
        return os.path.join(chosen, "index.db")
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        folder = os.path.join(home, "Library", "Application Support", "shoal")
    elif os.name == "nt":
        folder = os.path.join(environ.get("LOCALAPPDATA", home), "shoal")
    else:
        folder = os.path.join(environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share"), "shoal")
    return os.path.join(folder, "index.db")


class LocalResolver:
    """Makes ``load_dataset`` understand the datasets of the default index.

    Examples:
        >>> import shoal
        >>> from shoal.local import LocalIndex, Repo, set_default_index
        >>> set_default_index(LocalIndex("memory://"))
        >>> _ = Repo("memory://doc/resolver", index=shoal.local.default_index()).insert([{"txt": "a cat"}], name="pets")
        >>> shoal.load_dataset("@local/pets", split="train")[0]["txt"]
        'a cat'
        >>> set_default_index(None)
    """

    def matches(self, reference: str, /) -> bool:
        """``@local/...``, and the long form."""
        return reference.startswith(PREFIXES)

    def resolve(
        self,
        reference: str,
        /,
        *,
        split: str | None = None,
        data_files: DataFiles | Mapping[str, DataFiles] | None = None,
    ) -> Resolved:
        """Where the dataset lies, and the class of its samples. Raises CatalogKeyError when there is none."""
        if data_files is not None:
            raise OptionError("an entry of an index has its own files", expected="no data_files", found=reference)
        return resolved(default_index().get_dataset(reference))


def resolved(entry: Entry) -> Resolved:
    """An entry as ``load_dataset`` takes it."""
    entry.reach()
    files = entry.storage.root if entry.storage.has_manifest else entry.splits
    return Resolved(files, entry.sample_type())


resolver = LocalResolver()
