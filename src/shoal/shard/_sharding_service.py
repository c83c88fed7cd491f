"""`ShardingService`: one call from an iterable of samples to shards, an index and a manifest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shoal.errors import OptionError, WriteError
from shoal.store._url import join_url, parent_url

from ._foreign_formats import WidsShard, export_wids
from ._manifest import manifest_url
from ._writer import ShardWriter, WriteOptions

__all__ = ["ShardingService"]


class ShardingService:
    """Create WebDataset shards from an iterable of samples.

    ``output_dir`` is a folder or a URL. Shards are called ``shard-000000.tar`` and so on whatever the ``compression``:
    readers go by content. ``shard_size`` is the number of samples in a shard.

    Examples:
        >>> import shoal
        >>> service = shoal.ShardingService("memory://doc/service", shard_size=2)
        >>> samples = [{"image.jpg": b"...", "label.txt": "cat", "metadata": {"source": "web"}} for _ in range(3)]
        >>> service.create_shards_from_data(samples, metadata={"dataset": "pets"})
        ['memory://doc/service/shard-000000.tar', 'memory://doc/service/shard-000001.tar']
        >>> len(shoal.load_shards("memory://doc/service"))
        3
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        shard_size: int = 1000,
        compression: str | None = None,
        *,
        max_bytes: int = 1 << 30,
        level: int | None = None,
        hashed: bool = False,
        wids: bool = False,
    ) -> None:
        if type(shard_size) is not int or shard_size < 1:
            raise OptionError(
                "a shard holds at least one sample", expected="shard_size of at least 1", found=repr(shard_size)
            )
        WriteOptions(shard_size, max_bytes, compression, level)  # checks the options now
        self.output_dir = os.fspath(output_dir)
        self.shard_size = shard_size
        self.compression = compression
        self._max_bytes = max_bytes
        self._level = level
        self._hashed = hashed
        self._wids = wids

    @property
    def index_path(self) -> str:
        """Where the JSON index of all shards is: the manifest."""
        return manifest_url(self.output_dir)

    def create_shards_from_data(
        self,
        samples: Iterable[Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        resume: bool = False,
        append: bool = False,
    ) -> list[str]:
        """Write the samples and return the shards' paths.

        Samples are taken one at a time, so any iterable will do: mappings, packables or ``(key, mapping)`` pairs. A
        field called ``metadata`` becomes ``{key}.json``. ``metadata`` describes the whole: it goes into the index,
        into a ``__meta__`` member of each shard, and its ``split`` names the split.

        ``resume`` goes on after the finished shards of an interrupted call with the same samples; ``overwrite``
        replaces the split that is there, all at once when the new shards are complete; ``append`` adds to it.
        """
        split = (metadata or {}).get("split")
        writer = ShardWriter(
            join_url(self.output_dir, "shard-%06d.tar"),
            max_samples=self.shard_size,
            max_bytes=self._max_bytes,
            compression=self.compression,
            level=self._level,
            metadata=metadata,
            split=split if isinstance(split, str) and split else None,
            hashed=self._hashed,
            overwrite=overwrite,
            resume=resume,
            append=append,
        )
        with writer:
            for sample in _with_json(samples):
                writer.write(sample)
        if self._wids:
            self._export_wids(writer)
        return writer.urls

    def _export_wids(self, writer: ShardWriter) -> None:
        """Write ``wids.json`` beside the manifest; beside the shards, a hub would take it for data."""
        urls = zip(writer.urls, writer.shards, strict=True)
        shards = [WidsShard(url, record.samples, record.bytes) for url, record in urls]
        export_wids(shards, join_url(parent_url(self.index_path), "wids.json"))


def _with_json(samples: Iterable[Any]) -> Iterator[Any]:
    """Rename the field ``metadata`` to ``json``, which readers decode."""
    for sample in samples:
        key, fields = sample if isinstance(sample, tuple) and len(sample) == 2 else (None, sample)
        if isinstance(fields, Mapping) and "metadata" in fields:
            if "json" in fields:
                raise WriteError(
                    "a sample has both metadata and json, which would be one member", key=key or fields.get("__key__")
                )
            fields = {("json" if name == "metadata" else name): value for name, value in fields.items()}
            yield fields if key is None else (key, fields)
        else:
            yield sample
