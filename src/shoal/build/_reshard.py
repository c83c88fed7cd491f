"""`reshard` and `merge`: copy the samples of shards into other shards, without changing their bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from shoal.dataset._dataset import Dataset
from shoal.errors import OptionError
from shoal.shard._manifest import Manifest
from shoal.shard._writer import WriteOptions
from shoal.store._url import base_name

from ._build import Build, PathLike, Splits, make_engine, run_build
from ._engines import Engine
from ._items import Items, JoinedItems, ShardItems
from ._journal import parse_build_target
from ._plan import PlanOptions
from ._report import BuildProgress, BuildReport
from ._tasks import SampleBuilder

__all__ = ["merge", "reshard"]

Shards = PathLike | Dataset[Any]


def reshard(
    source: Shards,
    out: PathLike,
    *,
    max_samples: int = 10_000,
    max_bytes: int = 1 << 30,
    where: str | None = None,
    split: str | None = None,
    splits: Splits | None = None,
    sample: float | None = None,
    shuffle: bool = False,
    seed: int = 0,
    dedupe: bool | Sequence[str] = False,
    compression: str | None = None,
    level: int | None = None,
    hashed: bool = False,
    durable: bool = False,
    workers: int | None = None,
    engine: str | Engine = "local",
    overwrite: bool = False,
    progress: bool | Callable[[BuildProgress], object] | None = None,
) -> BuildReport:
    """Write the samples of a dataset of shards as other shards.

    ``source`` is a folder, a pattern or a `Dataset`, whose view is kept: deleted samples, and those a query leaves out,
    are not written. Splits, metadata and schema stay what they are, unless ``split`` chooses one or ``splits`` draws
    new ones. The other options are those of `build_shards`.

    Samples are copied as runs of bytes, and checked on the way; nothing is decoded, and memory does not grow with the
    data. Where that cannot be (compressed output, archives with other members between samples), they are read and
    written again. Resumable as `build_shards` is.

    Examples:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/many/train-%06d.tar", max_samples=1) as writer:
        ...     for number in range(6):
        ...         writer.write({"__key__": f"k{number}", "txt": "hello"})
        >>> report = shoal.build.reshard("memory://doc/many", "memory://doc/few", max_samples=4, workers=1)
        >>> [shard.samples for shard in report.shards]
        [3, 3]
    """
    dataset = _open_shards(source, split, where)
    items = ShardItems(dataset)
    target = parse_build_target(os.fspath(out))
    shares = tuple(splits.items() if isinstance(splits, Mapping) else splits or ())
    named = split if splits is None and (split is not None or items.splits() is None) else None
    build = Build(
        target,
        PlanOptions(max_samples, max_bytes, shuffle, seed, sample, shares, named, target.name),
        WriteOptions(max_samples, max_bytes, compression, level, hashed=hashed, durable=durable),
        SampleBuilder(),
        make_engine(engine, workers),
        dedupe if isinstance(dedupe, bool) else tuple(dedupe),
        overwrite=overwrite,
        **_common_manifest_facts([items]),
    )
    return run_build(items, build, progress)


def merge(
    sources: Iterable[Shards],
    out: PathLike,
    *,
    keys: Literal["keep", "prefix", "number"] = "keep",
    max_samples: int = 10_000,
    max_bytes: int = 1 << 30,
    shuffle: bool = False,
    seed: int = 0,
    dedupe: bool | Sequence[str] = False,
    compression: str | None = None,
    level: int | None = None,
    hashed: bool = False,
    durable: bool = False,
    workers: int | None = None,
    engine: str | Engine = "local",
    overwrite: bool = False,
    progress: bool | Callable[[BuildProgress], object] | None = None,
) -> BuildReport:
    """Write the samples of several datasets of shards as one dataset, split by split, one after the other.

    Two samples of one key cannot be in one shard: then ``keys="prefix"`` puts the name of the dataset before each key,
    and ``"number"`` gives new ones. With keys kept, samples are copied as `reshard` copies them. Metadata that the
    datasets agree on is kept, and so is their schema where they have the same. Raises ErrorBudgetExceeded when a key
    would be twice in a shard.

    Examples:
        >>> import shoal
        >>> for name in ("cats", "dogs"):
        ...     with shoal.ShardWriter(f"memory://doc/{name}/train-%06d.tar") as writer:
        ...         writer.write({"__key__": "first", "txt": name})
        >>> both = ["memory://doc/cats", "memory://doc/dogs"]
        >>> report = shoal.build.merge(both, "memory://doc/pets", keys="prefix", workers=1)
        >>> [sample["__key__"] for sample in shoal.Dataset("memory://doc/pets")]
        ['cats/first', 'dogs/first']
    """
    if keys not in ("keep", "prefix", "number"):
        raise OptionError("no such keys", expected="'keep', 'prefix' or 'number'", found=repr(keys))
    given = list(sources)
    if isinstance(sources, (str, os.PathLike)) or not given:
        raise OptionError("merging takes several datasets", expected="a list of them", found=repr(sources))
    parts = [ShardItems(_open_shards(source, None, None)) for source in given]
    items: Items = JoinedItems(parts)
    target = parse_build_target(os.fspath(out))
    prefixes = _prefixes(given, parts) if keys == "prefix" else ()
    build = Build(
        target,
        PlanOptions(max_samples, max_bytes, shuffle, seed, name=target.name),
        WriteOptions(max_samples, max_bytes, compression, level, hashed=hashed, durable=durable),
        SampleBuilder(numbered=keys == "number", prefixes=prefixes),
        make_engine(engine, workers),
        dedupe if isinstance(dedupe, bool) else tuple(dedupe),
        overwrite=overwrite,
        **_common_manifest_facts(parts),
    )
    return run_build(items, build, progress)


def _open_shards(source: Shards, split: str | None, where: str | None) -> Dataset[Any]:
    dataset = (
        Dataset(source, sample_type=dict, decode=False, split=split, format="webdataset")
        if isinstance(source, (str, os.PathLike))
        else source
    )
    return dataset if where is None else dataset.where(where)


def _prefixes(sources: Sequence[Shards], parts: Sequence[ShardItems]) -> tuple[tuple[int, str], ...]:
    """Return the first item and the key prefix of each dataset: its folder's name, with a number where names repeat."""
    names = [base_name(os.fspath(one)) if isinstance(one, (str, os.PathLike)) else "" for one in sources]
    names = [name.partition(".")[0] or f"part{number}" for number, name in enumerate(names)]
    if len(set(names)) < len(names):
        names = [f"{name}{number}" for number, name in enumerate(names)]
    starts, at = [], 0
    for part in parts:
        starts.append(at)
        at += len(part)
    return tuple(zip(starts, names, strict=True))


def _common_manifest_facts(parts: Sequence[ShardItems]) -> dict[str, Any]:
    """Return the metadata that no two datasets disagree on, and the schema if it is the same for all."""
    manifests = [part.manifest or Manifest({}) for part in parts]
    metadata: dict[str, Any] = {}
    for name in dict.fromkeys(name for manifest in manifests for name in manifest.metadata):
        values = [manifest.metadata[name] for manifest in manifests if name in manifest.metadata]
        if all(value == values[0] for value in values):
            metadata[name] = values[0]
    schema = manifests[0].schema
    same = all(manifest.schema == schema for manifest in manifests)
    return {"metadata": metadata, "schema": schema if same else None}
