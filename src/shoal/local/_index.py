"""`LocalIndex`, the default index, the choice of its database, and ``@local`` references."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

from shoal.errors import CatalogKeyError, OptionError
from shoal.protocols import AbstractDataStore, DataFiles, Resolved
from shoal.sample import Lens
from shoal.schema import Schema
from shoal.store import scheme_of

from . import _datasets, _schemas_lenses
from ._backend import Backend, MemoryBackend, Transaction
from ._datasets import Bounds, When, query_of
from ._entry import Entry, Storage, StoredShard, describe
from ._refs import Reference, check_name, check_version, parse_reference, parse_thing
from ._schemas_lenses import LensRecord
from ._sqlite import SqliteBackend

__all__ = ["LocalIndex", "LocalResolver", "default_index", "resolver", "set_default_index"]

_ID = ("about", "id")
_CHOSEN: list[LocalIndex] = []
_REDIS = ("redis", "rediss", "unix")
_POSTGRES = ("postgresql", "postgres")
_MOST_BYTES = 1 << 20
_MOST_DEEP = 64
_TAGS, _TAG_LETTERS, _DESCRIPTION_LETTERS = 30, 150, 5000  # as an AT Protocol record has them
_PREFIXES = ("@local/", "shoal://local/dataset/")


class LocalIndex:
    """Datasets, schemas and lenses by name.

    Kept in the place that is named: a path (SQLite), ``redis://...``, ``postgresql://...``, a ``redis`` client, or a
    Redis ``host`` and ``port``; else in the one that ``SHOAL_INDEX`` names; else in the Redis of ``REDIS_URL``; else in
    a SQLite file of the user's. All of them behave alike. Nothing is opened before it is needed. ``namespace`` keeps
    several indexes apart in one Redis or PostgreSQL.

    Example:
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
        return _reached, (location, self._namespace)

    # ------------------------------------------------------------------------------------------------------ datasets

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
        said = self._said(description, tags, metadata, version)
        if data_store is not None:
            schema = _typed(ds)
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
        said = self._said(description, tags, metadata, version)
        place = f"{storage.endpoint or ''} {storage.root}"
        draft = _datasets.EntryDraft(check_name(name), cid, storage, tuple(shards), place, **said)
        return self._record(draft, None, schema_ref)

    def _said(
        self, description: str | None, tags: Iterable[str], metadata: Mapping[str, Any] | None, version: str | None
    ) -> dict[str, Any]:
        """What people say of a dataset, checked before anything is done."""
        return {
            "description": None if description is None else check_description(description),
            "tags": check_tags(tags),
            "metadata": check_metadata(metadata),
            "version": None if version is None else check_version(version),
        }

    def _record(self, draft: _datasets.EntryDraft, schema: Schema | None, schema_ref: str | None) -> Entry:
        """Entry and schema, in one step."""
        kept = None if schema is None or schema_ref is not None else _schemas_lenses.check_schema(schema)
        ref = None if schema_ref is None else self._known_ref(schema_ref)
        now = time.time()

        def change(records: Transaction) -> Entry:
            found = ref if kept is None else _schemas_lenses.publish_schema(records, kept, None, now)
            return _datasets.record(records, replace(draft, schema_ref=found or ""), now)

        return self._mine(self._backend.transact(change))

    def _known_ref(self, ref: str) -> str:
        """The whole reference of a schema that is there; one of another network is kept as it is."""
        return ref if ref.startswith("at://") else str(self.get_schema(ref)["$ref"])

    def _mine(self, entry: Entry) -> Entry:
        return replace(entry, _index=self)

    def get_dataset(self, ref: str, /) -> Entry:
        """The dataset of this reference: ``name``, ``name@1.2.0``, ``name@latest`` or ``@local/name``.

        Raises CatalogKeyError, which is a KeyError, when there is none.
        """
        return self._mine(_datasets.get(self._backend, parse_reference(ref)))

    def list_datasets(self, prefix: str = "") -> Iterator[Entry]:
        """The newest version of every dataset, by name; those whose name begins with ``prefix``."""
        return map(self._mine, _datasets.list_entries(self._backend, prefix))

    def history(self, name: str) -> list[Entry]:
        """Every version of a dataset, in the order they came. Raises CatalogKeyError."""
        return [self._mine(entry) for entry in _datasets.history(self._backend, parse_reference(name).name)]

    def find_content(self, cid: str) -> list[Entry]:
        """Every version, of any name, that stands for the content with this address."""
        return [self._mine(entry) for entry in _datasets.entries_of(self._backend, cid)]

    def label(self, ref: str, name: str, *, version: str | None = None, tags: Iterable[str] = ()) -> Entry:
        """Give a version another name too: nothing is copied. Raises CatalogKeyError, CatalogConflictError."""
        asked, to, kept, now = parse_reference(ref), check_name(name), check_tags(tags), time.time()
        chosen = None if version is None else check_version(version)
        return self._mine(self._backend.transact(lambda change: _datasets.label(change, asked, to, chosen, kept, now)))

    def rename(self, name: str, to: str) -> Entry:
        """Give a dataset, with its history, another name. Raises CatalogKeyError, CatalogConflictError."""
        old, new = parse_reference(name).name, check_name(to)
        return self._mine(self._backend.transact(lambda change: _datasets.rename(change, old, new)))

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
        return self._mine(self._backend.transact(lambda change: _datasets.retag(change, spelled, choose)))

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
        return [self._mine(entry) for entry in _datasets.read_many(self._backend, [Reference(name) for name in names])]

    def __contains__(self, ref: object) -> bool:
        try:
            return isinstance(ref, str) and bool(self.get_dataset(ref))
        except (CatalogKeyError, OptionError):
            return False

    def __len__(self) -> int:
        return self._backend.count("head")

    # ------------------------------------------------------------------------------------------------------- schemas

    def publish_schema(self, sample_type: type[Any] | Schema, *, version: str | None = None, **options: Any) -> str:
        """Write down the schema of a class; returns the reference to it.

        The same content again gives the same reference. Without ``version`` a changed schema gets the next one, by what
        changed. Raises SchemaError for a version that has another content already, or is too low for what changed.

        Example:
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

    # -------------------------------------------------------------------------------------------------------- lenses

    def store_lens(self, lens: Lens[Any, Any], *, name: str | None = None, version: str | None = None) -> str:
        """Write down where a lens's code is, with a hash of it, and publish the schemas of both types.

        Only a lens that can be imported from a module is kept: what is kept is then what runs. Raises LensError.
        """
        draft = _schemas_lenses.draft_of(lens, name)
        now = time.time()
        return self._backend.transact(lambda change: _schemas_lenses.publish_lens(change, draft, version, now))

    def get_lens(self, ref: str, /) -> LensRecord:
        """What is known of a lens; nothing is imported. Raises CatalogKeyError."""
        return _schemas_lenses.get_lens_record(self._backend, parse_thing("lens", ref))

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
        """The lenses of `find_lenses`, imported and composed."""
        return _schemas_lenses.composed(self.find_lenses(source, view))

    # ------------------------------------------------------------------------------------------------------ resource

    @property
    def _id(self) -> str:
        """What tells this index from others, whoever reaches it by whatever name."""

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


def _reached(location: str, namespace: str) -> LocalIndex:
    return LocalIndex(location, namespace=namespace)


def _typed(ds: Any) -> Schema | None:
    schema = getattr(ds, "schema", None)
    return schema if isinstance(schema, Schema) else None


def default_index() -> LocalIndex:
    """The index that ``load_dataset("@local/name")`` asks: the one that was set, else ``LocalIndex()``.

    Example:
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
        return _redis(client=redis, namespace=namespace)
    if host is not None or port is not None:
        return _redis(url=f"redis://{host or '127.0.0.1'}:{port or 6379}/0", namespace=namespace)
    if location is None:
        location = environ.get("SHOAL_INDEX") or environ.get("REDIS_URL") or default_path(environ)
    return _at(os.fspath(location), namespace)


def _at(location: str, namespace: str) -> Backend:
    scheme = scheme_of(location)
    if scheme in _REDIS:
        return _redis(url=location, namespace=namespace)
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


def _redis(*, url: str | None = None, client: Any = None, namespace: str) -> Backend:
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


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Metadata as JSON gives it back; None for none.

    Raises OptionError for what JSON cannot hold as it is, for more than 1 MiB, and for more than 64 levels.

    Example:
        >>> check_metadata({"source": "camera 3", "sizes": (1, 2)})
        {'source': 'camera 3', 'sizes': [1, 2]}
    """
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise OptionError("metadata is a mapping", found=type(metadata).__name__)
    _check_node(dict(metadata), "metadata", _MOST_DEEP)
    text = json.dumps(dict(metadata), ensure_ascii=False)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise OptionError("metadata is not text that can be stored", found="half of a surrogate pair") from None
    if size > _MOST_BYTES:
        hint = "keep it in a file of the dataset, and its name here"
        raise OptionError("the metadata is too large", expected=f"at most {_MOST_BYTES} bytes", found=size, hint=hint)
    kept: dict[str, Any] = json.loads(text)
    return kept


def _check_node(node: Any, path: str, left: int) -> None:
    if not left:
        raise OptionError("the metadata is too deep, or contains itself", expected=f"{_MOST_DEEP} levels", field=path)
    if isinstance(node, dict):
        for name, inner in node.items():
            if not isinstance(name, str):
                raise OptionError("names in metadata are texts", found=repr(name)[:80], field=path)
            _check_node(inner, f"{path}.{name[:40]}", left - 1)
    elif isinstance(node, list | tuple):
        for inner in node:
            _check_node(inner, f"{path}[]", left - 1)
    elif not _is_plain(node):
        expected = "texts, finite numbers below 2**63, true, false, null, lists and mappings"
        raise OptionError("this cannot be metadata", expected=expected, found=repr(node)[:80], field=path)


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return value - value == 0  # neither infinite nor NaN
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, str)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags in their one spelling, sorted, each once. Raises OptionError.

    Example:
        >>> check_tags(["vision", "animals", "vision"])
        ('animals', 'vision')
    """
    if isinstance(tags, str):
        raise OptionError("tags are a list", expected=f"[{tags!r}]", found=repr(tags))
    kept = sorted(set(map(_tag, tags)))
    if len(kept) > _TAGS:
        raise OptionError("there are too many tags", expected=f"at most {_TAGS}", found=len(kept))
    return tuple(kept)


def _tag(tag: object) -> str:
    text = tag.strip() if isinstance(tag, str) else ""
    if not text or len(text) > _TAG_LETTERS or not text.isprintable():
        raise OptionError("this is no tag", expected=f"1 to {_TAG_LETTERS} printable letters", found=repr(tag)[:200])
    return text


def check_description(text: object) -> str:
    """The text itself. Raises OptionError for one that is too long, or none."""
    if not isinstance(text, str) or len(text) > _DESCRIPTION_LETTERS:
        found = len(text) if isinstance(text, str) else repr(text)[:80]
        raise OptionError(
            "this is no description", expected=f"a text of at most {_DESCRIPTION_LETTERS} letters", found=found
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError("the description is not text that can be stored", found="half of a surrogate pair") from None
    return text


class LocalResolver:
    """Makes ``load_dataset`` understand the datasets of the default index.

    Example:
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
        return reference.startswith(_PREFIXES)

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
