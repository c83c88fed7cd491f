"""The Dataset: what a user holds. What it can do is in the modules of its base classes, one for each kind of verb."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from shoal.codec import decode_spec
from shoal.errors import OptionError
from shoal.formats import SourceOptions
from shoal.protocols import DataSource
from shoal.shard import WEBDATASET_RULE, ErrorPolicy, KeyRule

from ._asked import check_path
from ._batching import Batching
from ._combined._mix import Mixing
from ._combined._verbs import Combining
from ._description import DatasetOptions, Description, PathLike
from ._growing._verbs import Growth
from ._peer._huggingface import HuggingFaceVerbs
from ._peer._webdataset import WebDatasetVerbs
from ._shard_work import ShardWork
from ._table._verbs import Tables
from ._verbs_pipeline import PipelineVerbs

__all__ = ["Dataset"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar  # typing's has no default before Python 3.13

    T = DefaultTypeVar("T", default=dict[str, Any])
else:
    T = TypeVar("T")


class Dataset(
    Combining[T],
    Growth[T],
    Batching[T],
    WebDatasetVerbs[T],
    HuggingFaceVerbs[T],
    Tables[T],
    ShardWork[T],
    Mixing[T],
    PipelineVerbs[T],
):
    """Samples by position, by key, in order, in batches, or by query.

    ``path`` is a tar, a pattern (``data-{000000..000099}.tar``, ``*.tar``), a list of these, a folder, or a URL that a
    registered store serves. Opening is lazy: the first question reads the manifest, or indexes a tar that has no index
    and keeps that in the cache.

    ``decode=True`` decodes json, text, class numbers, arrays, msgpack and cbor, and leaves images, audio and video as
    bytes; ``False`` gives bytes; a spec such as ``"rgb8"``, ``"pil"`` or ``{"jpg": "numpy"}`` decodes more.
    ``verify`` checks all that is read against the index's checksums. ``on_error`` says what to do about damage:
    ``"raise"``, ``"skip"`` within ``error_budget``, or ``"quarantine"``, which also writes down what was passed over;
    ``errors`` counts it. Arrays are read-only views of the bytes that were read; ``writable`` makes copies of your own.
    Samples that were deleted with ``tombstone`` are left out; ``tombstones=False`` shows them. ``cache`` keeps what was
    read of far shards on the local disk, ``"blocks"``, or the whole of each shard that is opened, ``"shards"``.

    ``Dataset[ImageSample](path)`` gives samples of that type, from ``.msgpack`` payloads or from plain fields by name.
    Without a type the manifest's schema makes one; else payloads are ``DictSample`` and anything else is a dict.

    Example:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/ds/train-%06d.tar") as writer:
        ...     for number in range(4):
        ...         writer.write({"__key__": f"k{number}", "txt": "hi", "json": {"width": number * 100}})
        >>> ds = shoal.Dataset("memory://doc/ds")
        >>> len(ds), ds[0]["txt"], ds.get("k3")["json"]
        (4, 'hi', {'width': 300})
        >>> [sample["__key__"] for sample in ds.where("width >= 200")]
        ['k2', 'k3']
    """

    @overload
    def __init__(
        self,
        path: PathLike | Iterable[PathLike] | DataSource,
        *,
        sample_type: type[T],
        **options: Unpack[DatasetOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        path: PathLike | Iterable[PathLike] | DataSource,
        *,
        sample_type: None = None,
        **options: Unpack[DatasetOptions],
    ) -> None: ...
    def __init__(
        self,
        path: PathLike | Iterable[PathLike] | DataSource,
        *,
        sample_type: type[Any] | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        self._begin(_described(path, sample_type, **options))


def _refuse_unless_bool(name: str, value: object) -> None:
    if type(value) is not bool:
        raise OptionError(f"{name} is yes or no", expected="True or False", found=repr(value))


def _checked_cache(cache: object) -> str | None:
    if cache not in (None, "blocks", "shards"):
        raise OptionError("cache is not one of its values", expected="'blocks', 'shards' or None", found=repr(cache))
    return None if cache is None else str(cache)


def _described(
    path: PathLike | Iterable[PathLike] | DataSource, sample_type: type[Any] | None, **options: Unpack[DatasetOptions]
) -> Description:
    unknown = set(options) - set(DatasetOptions.__annotations__)
    if unknown:
        raise TypeError(f"Dataset has no option {min(unknown)!r}; it has {', '.join(DatasetOptions.__annotations__)}")
    fields = options.get("fields")
    if isinstance(fields, str):
        raise OptionError("fields are a list of names", expected=f"[{fields!r}]", found=repr(fields))
    path = path if isinstance(path, (str, os.PathLike, DataSource)) or hasattr(path, "read") else _listed(path)
    check_path(path)
    rule = options.get("rule", WEBDATASET_RULE)
    if not isinstance(rule, KeyRule):
        raise OptionError("this is no rule for keys", expected="a KeyRule", found=repr(rule))
    _refuse_unless_bool("verify", options.get("verify", True))
    _refuse_unless_bool("writable", options.get("writable", False))
    _refuse_unless_bool("tombstones", options.get("tombstones", True))
    return Description(
        tuple(map(_at_home, path)) if isinstance(path, tuple) else _at_home(path),
        SourceOptions(
            options.get("split"),
            rule,
            options.get("verify", True),
            cache=_checked_cache(options.get("cache")),
        ),
        options.get("format"),
        decode_spec(
            options.get("decode", True),
            allow_pickle=options.get("allow_pickle", False),
            on_decode_error=options.get("on_decode_error", "raise"),
        ),
        ErrorPolicy(options.get("on_error", "raise"), options.get("error_budget"), options.get("quarantine")),
        None if fields is None else tuple(fields),
        sample_type,
        tombstones=options.get("tombstones", True),
        writable=options.get("writable", False),
    )


def _listed(paths: Any) -> Any:
    """Several paths as a tuple: they are looked at more than once."""
    return tuple(paths) if isinstance(paths, Iterable) else paths


def _at_home(path: Any) -> Any:
    """A path with ``~`` as the user's own folder; URLs, patterns and objects as they are."""
    text = path if isinstance(path, str) else os.fspath(path) if isinstance(path, os.PathLike) else ""
    return os.path.expanduser(text) if text.startswith("~") else path
