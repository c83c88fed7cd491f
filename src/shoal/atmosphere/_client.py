"""`AtmosphereClient`, and the resolver with which `load_dataset` opens published datasets."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from shoal.dataset._dataset import Dataset
from shoal.dataset._load import load_dataset
from shoal.dataset._splits import DatasetDict
from shoal.errors import OptionError, RecordNotFoundError, SchemaError, SessionError
from shoal.local._index import LocalIndex
from shoal.protocols import DataFiles, Resolved
from shoal.sample._annotations import is_record, schema_of
from shoal.sample._lens import Lens
from shoal.schema._schema import Schema

from . import _lenses, _open, _publish
from ._appview import AppView, search
from ._firehose import Event, Followed, watch
from ._identifiers import AtUri, DatasetRef, parse_ref
from ._lenses import CodeOffer, Trust
from ._pds import Patience
from ._publish import MOST_BLOBS, DatasetMetadata, Progress, SourceShard, StorageKind
from ._records import (
    CodeReference,
    PublishedDataset,
    PublishedLabel,
    PublishedLens,
    PublishedSchema,
    PublishedVerification,
)
from ._repositories import Network, NetworkConfig

__all__ = ["AtmosphereClient", "AtmosphereResolver", "default_client", "resolver", "set_default_client"]

_REFERENCE = re.compile(r"at://|@(?!local/)(?:did:[a-z]+:[^/]+|[^/@\s]+\.[^/@\s]+)/")
_lock = threading.Lock()
_default: AtmosphereClient | None = None


class AtmosphereClient:
    """The AT Protocol network, for datasets: publish, find, load, follow.

    Reading needs no account. Nothing is asked before it is needed.

    Args:
        base_url: The server to log in to, and to ask for handles; else the one that the account names itself.
        plc_url: The directory of accounts.
        appview: An AppView to be asked first; never needed.
        allow_private: Ask addresses on this machine and in private networks too, where strangers' records name them.
        followed: Where what was followed is kept; a file of the user's by default.
        patience: How long servers are waited for.
        max_shard_bytes: The largest shard that is fetched.

    Examples:
        >>> client = AtmosphereClient()
        >>> client
        <AtmosphereClient, not logged in>
    """

    def __init__(
        self,
        base_url: str | None = None,
        plc_url: str | None = None,
        *,
        appview: str | None = None,
        allow_private: bool = False,
        followed: str | os.PathLike[str] | Followed | None = None,
        patience: Patience | None = None,
        max_shard_bytes: int = 16 << 30,
    ) -> None:
        plc = plc_url or "https://plc.directory"
        reach = NetworkConfig(base_url, plc, appview, allow_private, patience or Patience(), max_shard_bytes)
        self._network = Network(reach)
        self._followed = followed if isinstance(followed, Followed) else Followed(followed)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> AtmosphereClient:
        """The client that the environment says.

        ``SHOAL_PDS_URL``, ``SHOAL_PLC_URL``, ``SHOAL_APPVIEW``, ``SHOAL_ALLOW_PRIVATE=1``; and to be logged in,
        ``SHOAL_HANDLE`` with ``SHOAL_APP_PASSWORD``, or ``SHOAL_SESSION``.
        """
        client = cls(
            environ.get("SHOAL_PDS_URL"),
            environ.get("SHOAL_PLC_URL"),
            appview=environ.get("SHOAL_APPVIEW"),
            allow_private=environ.get("SHOAL_ALLOW_PRIVATE", "") not in ("", "0"),
        )
        if session := environ.get("SHOAL_SESSION"):
            client.import_session(session)
        elif environ.get("SHOAL_HANDLE") and environ.get("SHOAL_APP_PASSWORD"):
            client.login(environ["SHOAL_HANDLE"], environ["SHOAL_APP_PASSWORD"])
        return client

    def __repr__(self) -> str:
        who = self.handle or self.did
        return f"<AtmosphereClient {'of ' + who if who else ', not logged in'}>".replace(" ,", ",")

    def login(self, handle: str, app_password: str) -> None:
        """Become an account. Use an app password: it can be taken back. Raises SessionError."""
        self._network.login(handle, app_password)

    def require_login(self) -> None:
        """Raise SessionError unless somebody is logged in."""
        _ = self._network.own

    def logout(self) -> None:
        """Be nobody again; what was exported stays good."""
        self._network.logout()

    @property
    def did(self) -> str | None:
        """The lasting name of the account; None when nobody is logged in."""
        return self._network.did

    @property
    def handle(self) -> str | None:
        """The handle of the account; None when nobody is logged in."""
        return None if self._network.did is None else self._network.own.handle

    def export_session(self) -> str:
        """The session as text, for `import_session`. It is a secret: whoever has it is the account."""
        own = self._network.own
        document = json.dumps({"service": own.url, "session": own.export_session()})
        return base64.urlsafe_b64encode(document.encode()).decode()

    def import_session(self, text: str) -> None:
        """Go on with a session that was exported. Raises SessionError."""
        try:
            document = json.loads(base64.urlsafe_b64decode(text))
            service, session = str(document["service"]), str(document["session"])
        except (ValueError, KeyError, TypeError):
            raise SessionError("this is no exported session", hint="make one with export_session()") from None
        self._network.resume(session, service)

    def refresh(self) -> None:
        """Get new tokens for the session; done by itself when they run out. Raises SessionError when it has ended."""
        self._network.own.refresh()

    def publish_schema(
        self, sample_type: type[Any] | Schema, *, version: str | None = None, description: str | None = None
    ) -> str:
        """Publish the schema of a class; returns its ``at://`` URI. The same content again gives the same URI.

        Without ``version`` a changed schema gets the next one, by what changed. Raises SchemaError for a version that
        has another content already.
        """
        made = _publish.publish_schema(self._network, sample_type, version=version, description=description)
        return str(made.uri)

    def get_schema(self, ref: str, /) -> dict[str, Any]:
        """The record of a schema, by ``at://`` URI or ``@handle/Name@version``. Raises RecordNotFoundError."""
        return self._network.get(self.find_schema(ref).uri).value

    def find_schema(self, ref: str | AtUri) -> PublishedSchema:
        """A schema as a value, by ``at://`` URI or ``@handle/Name@version``. Raises RecordNotFoundError."""
        return _open.get_schema(self._network, ref)

    def list_schemas(self, handle: str | None = None) -> Iterator[PublishedSchema]:
        """The schemas of an account, or one's own."""
        return _open.list_schemas(self._network, handle)

    def publish_dataset(
        self,
        data: Any,
        *,
        name: str,
        schema: str | AtUri | type[Any] | Schema | None = None,
        storage: StorageKind = "auto",
        description: str = "",
        tags: Iterable[str] = (),
        license: str = "",  # noqa: A002 - as the record calls it
        metadata: Mapping[str, Any] | None = None,
        version: str | None = None,
        allow_private: bool = False,
        max_blob_bytes: int = MOST_BLOBS,
        blob_limit: int | None = None,
        progress: Progress | None = None,
    ) -> PublishedDataset:
        """Publish shards: a :class:`shoal.Dataset`, its splits, a path, a pattern or URLs.

        ``storage`` says where others find the bytes: ``http`` or ``s3`` where they lie, ``blobs`` on one's own server,
        cut into pieces that it takes; ``auto`` leaves them where others can read them, and makes blobs of the rest.
        ``schema`` is a class, a schema or the URI of one; else the dataset's own. ``version`` also publishes a label,
        for ``@handle/name@version``. The same name, schema and bytes again give the same record.

        Raises AtmosphereError, with the reason, for what others could not read; TooLargeError for more than
        ``max_blob_bytes`` as blobs; SchemaError where the samples have no schema.
        """
        whole = data if isinstance(data, Dataset | DatasetDict) else load_dataset(data)
        return self.publish_shards(
            _publish.shards_of(whole),
            name=name,
            schema=self._schema_of(whole) if schema is None else schema,
            storage=storage,
            description=description,
            tags=tags,
            license=license,
            metadata=metadata,
            version=version,
            allow_private=allow_private,
            max_blob_bytes=max_blob_bytes,
            blob_limit=blob_limit,
            progress=progress,
        )

    def publish_shards(
        self,
        shards: Sequence[SourceShard],
        *,
        name: str,
        schema: str | AtUri | type[Any] | Schema,
        storage: StorageKind = "auto",
        description: str = "",
        tags: Iterable[str] = (),
        license: str = "",  # noqa: A002 - as the record calls it
        metadata: Mapping[str, Any] | None = None,
        version: str | None = None,
        allow_private: bool = False,
        max_blob_bytes: int = MOST_BLOBS,
        blob_limit: int | None = None,
        progress: Progress | None = None,
    ) -> PublishedDataset:
        """Publish shards that an index knows all about; for the rest see `publish_dataset`.

        Of shards whose hash is known nothing is read, where the dataset is published already.
        """
        if not shards:
            raise OptionError("there is nothing to publish", found=name)
        words = DatasetMetadata(description, tuple(tags), license, metadata)
        kind = _publish.chosen_storage(shards, storage, allow_private=allow_private)
        uri = self._schema_uri(schema)
        known = [shard if shard.sha256 is not None else _publish.with_sha256(shard) for shard in shards]
        key = _publish.dataset_key(name, uri, known)
        there = _publish.find_dataset(self._network, key)
        if there is None or (storage != "auto" and _publish.storage_kind(there.storage) != kind):
            placed = _publish.place_shards(
                self._network, known, kind, most=max_blob_bytes, limit=blob_limit, progress=progress
            )
            there = _publish.publish_dataset(self._network, name, uri, key, placed, words)
        else:
            there = _publish.reword(self._network, there, words)
        if version is not None:
            _publish.publish_label(self._network, name, there.uri, version=version)
        return there

    def _schema_uri(self, schema: str | AtUri | type[Any] | Schema) -> AtUri:
        if isinstance(schema, AtUri):
            return schema
        if isinstance(schema, str):
            return self.find_schema(schema).uri
        return _publish.publish_schema(self._network, schema).uri

    def _schema_of(self, data: Any) -> Schema:
        found = _publish.manifest_schema(data) or _typed(data)
        if found is None:
            raise SchemaError("the samples have no schema", hint="pass schema=, the class of the samples")
        return found

    def insert_dataset(self, ds: Any, *, name: str, schema_ref: str | None = None, **options: Any) -> PublishedDataset:
        """Publish a dataset, as an index would write it down; ``options`` are those of `publish_dataset`."""
        return self.publish_dataset(ds, name=name, schema=schema_ref, **options)

    def get_dataset(self, ref: str, /) -> PublishedDataset:
        """The dataset of ``at://...``, ``@handle/name`` or ``@handle/name@version``. Raises RecordNotFoundError."""
        asked = parse_ref(ref)
        if isinstance(asked, DatasetRef) and self.appview is not None:
            try:
                return _open.get_dataset(
                    self._network, self.appview.resolve_label(asked.account, asked.name, asked.version)
                )
            except (RecordNotFoundError, OSError):
                pass  # it does not know everything, and is never needed
        return _open.get_dataset(self._network, asked)

    def list_datasets(self, handle: str | None = None) -> Iterator[PublishedDataset]:
        """The datasets of an account, or one's own; all of them, however many."""
        return _open.list_datasets(self._network, handle)

    def search(self, text: str, *, handles: Iterable[str] = (), limit: int = 50) -> list[PublishedDataset]:
        """Datasets whose name, description, tags or license have all these words.

        Looked for in the AppView where one is configured, in what was followed, and with the accounts in ``handles``.
        """
        return search(self._network, text, appview=self.appview, followed=self._followed, accounts=handles, limit=limit)

    def load(self, ref: str, *, split: str | None = None, verify: bool = True, **options: Any) -> Any:
        """Open a published dataset: a Dataset with ``split``, else a DatasetDict; typed by its published schema.

        Shards are fetched when they are needed and checked against the record. With ``verify=False`` those at URLs are
        read in place, by ranges. ``options`` are those of :class:`shoal.Dataset`.
        """
        found = self.resolve(ref, verify=verify)
        options.setdefault("sample_type", found.sample_type)
        files: Any = found.files
        if isinstance(files, Mapping):
            root = DatasetDict({name: Dataset(urls, **options) for name, urls in files.items()})
            return root if split is None else root[split]
        return load_dataset(files, split=split, **options)

    def resolve(self, ref: str, *, verify: bool = True) -> Resolved:
        """What `shoal.load_dataset` opens for a reference."""
        return _open.resolve_dataset(self._network, self.get_dataset(ref), verify=verify)

    def pull(self, ref: str, folder: str | os.PathLike[str], *, progress: Progress | None = None) -> list[str]:
        """Copy a published dataset into a folder, every shard checked; returns the paths.

        The folder gets a manifest, with the schema, so it is a dataset like any other. Shards that are there, and are
        the published ones, are not fetched again.
        """
        return _open.pull(self._network, self.get_dataset(ref), os.fspath(folder), progress)

    def publish_label(
        self, name: str, dataset: str | AtUri, *, version: str | None = None, description: str = ""
    ) -> PublishedLabel:
        """Give a dataset a name and a version, for ``@handle/name@version``."""
        uri = dataset if isinstance(dataset, AtUri) else AtUri.parse(dataset)
        return _publish.publish_label(self._network, name, uri, version=version, description=description)

    def list_labels(self, handle: str | None = None) -> Iterator[PublishedLabel]:
        """The labels of an account, or one's own."""
        return _open.list_labels(self._network, handle)

    def publish_lens(
        self, lens: Lens[Any, Any], *, getter: CodeReference, putter: CodeReference | None = None, description: str = ""
    ) -> PublishedLens:
        """Publish where a lens's code is, and the schemas of both its types. The code itself stays where it is."""
        return _lenses.publish_lens(self._network, lens, getter=getter, putter=putter, description=description)

    def get_lens(self, uri: str | AtUri) -> PublishedLens:
        """What is known of a lens; no code is fetched. Raises RecordNotFoundError."""
        return _lenses.get_lens(self._network, uri if isinstance(uri, AtUri) else AtUri.parse(uri))

    def list_lenses(self, handle: str | None = None) -> Iterator[PublishedLens]:
        """The lenses of an account, or one's own."""
        return _lenses.list_lenses(self._network, handle)

    def offer_lens(self, uri: str | AtUri, *, vouchers: Iterable[str] = ()) -> CodeOffer:
        """The code of a lens, to be read before anybody runs it, and which of ``vouchers`` verified this very file."""
        return _lenses.offer_of(self._network, self.get_lens(uri), tuple(vouchers))

    def load_lens(self, uri: str | AtUri, *, trust: Trust = None, vouchers: Iterable[str] = ()) -> Lens[Any, Any]:
        """A published lens, ready to be used.

        Its code runs here, so only after a yes: ``trust`` is a function that gets the :class:`CodeOffer` and returns
        True, or the sha256 of the file that was read before. Raises UntrustedError without one.
        """
        parsed = uri if isinstance(uri, AtUri) else AtUri.parse(uri)
        return _lenses.load_lens(self._network, parsed, trust, tuple(vouchers))

    def verify_lens(
        self, uri: str | AtUri, *, method: str = "codeReview", description: str = ""
    ) -> PublishedVerification:
        """Publish one's word that a lens, with the code it has now, does what it says."""
        parsed = uri if isinstance(uri, AtUri) else AtUri.parse(uri)
        return _lenses.verify_lens(self._network, parsed, method, description)

    def delete(self, uri: str | AtUri) -> None:
        """Remove one's own record; blobs that no other record names go with it. Raises RecordNotFoundError."""
        self._network.delete(uri if isinstance(uri, AtUri) else AtUri.parse(uri))

    @property
    def appview(self) -> AppView | None:
        """The AppView's calls; None where none is configured."""
        url = self._network.reach.appview
        return None if url is None else AppView(self._network.service(url))

    @property
    def followed(self) -> Followed:
        """What was followed."""
        return self._followed

    def watch(
        self,
        service: str | None = None,
        *,
        handles: Iterable[str] | None = None,
        index: LocalIndex | None = None,
        on_event: Callable[[Event], None] | None = None,
        stop: threading.Event | None = None,
        idle: float | None = None,
    ) -> int:
        """Follow the events of a server or a relay, from where it was left; returns how many came.

        ``handles`` follows only these accounts, at the server of the first where no ``service`` is named. Goes on until
        ``stop`` is set, or nothing came for ``idle`` seconds. Datasets are found by `search` from then on; with
        ``index`` also in that index, as ``handle/name``, with their URI in the metadata.
        """
        accounts = None if handles is None else [self._network.account(handle) for handle in handles]
        url = service or (accounts[0].pds if accounts else self._network.reach.base_url)
        if url is None:
            raise OptionError("there is nothing to follow", expected="a service, or handles")
        dids = None if accounts is None else [account.did for account in accounts]
        options: dict[str, Any] = {"on_event": on_event, "stop": stop, "idle": idle}
        return watch(self._network, url, self._followed, accounts=dids, index=index, **options)

    def close(self) -> None:
        """Close connections and files; the next use opens them again."""
        self._network.close()
        self._followed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _typed(data: Any) -> Schema | None:
    part = next(iter(data.values())) if isinstance(data, DatasetDict) else data
    kind = part.sample_type
    return schema_of(kind) if is_record(kind) else None


def default_client() -> AtmosphereClient:
    """The client that ``load_dataset`` asks: the one that was set, else the one that the environment says.

    Examples:
        >>> default_client() is default_client()
        True
    """
    global _default  # noqa: PLW0603 - one for the process
    with _lock:
        if _default is None:
            _default = AtmosphereClient.from_env()
        return _default


def set_default_client(client: AtmosphereClient | None) -> None:
    """Let ``load_dataset`` ask this client; None for the one that the environment says.

    Examples:
        >>> set_default_client(AtmosphereClient())
        >>> set_default_client(None)
    """
    global _default  # noqa: PLW0603 - one for the process
    with _lock:
        _default = client


class AtmosphereResolver:
    """Lets ``load_dataset`` understand ``at://...``, ``@handle/name`` and ``@handle/name@version``.

    Examples:
        >>> AtmosphereResolver().matches("@alice.test/pets"), AtmosphereResolver().matches("@local/pets")
        (True, False)
    """

    def matches(self, reference: str, /) -> bool:
        """Whether a reference names something on the network."""
        return _REFERENCE.match(reference) is not None

    def resolve(
        self,
        reference: str,
        /,
        *,
        split: str | None = None,
        data_files: DataFiles | Mapping[str, DataFiles] | None = None,
    ) -> Resolved:
        """The shards that the record names, and the class that its schema makes."""
        if data_files is not None:
            raise OptionError("a published dataset names its own files", expected="no data_files", found=data_files)
        return default_client().resolve(reference)


resolver = AtmosphereResolver()
"""What the entry point names."""
