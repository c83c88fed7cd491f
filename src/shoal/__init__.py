"""shoal: plain tar shards as typed, indexed, searchable, exactly resumable datasets.

Names are imported at their first use, so that ``import shoal`` stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    AccessDeniedError,
    AtmosphereError,
    CatalogConflictError,
    CatalogConnectionError,
    CatalogError,
    CatalogKeyError,
    ChecksumError,
    CodecError,
    ColumnError,
    DecodeError,
    DuplicateFieldError,
    EncodeError,
    ErrorBudgetExceeded,
    FieldError,
    FormatError,
    HeaderError,
    InterleavedKeyError,
    LensError,
    LensNotFoundError,
    LoaderError,
    LoaderStateError,
    LoaderTimeoutError,
    ManifestError,
    MissingExtraError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    PatternError,
    PositionError,
    QueryError,
    RateLimitError,
    RecordError,
    RecordNotFoundError,
    SampleKeyError,
    SchemaError,
    SchemaMismatchError,
    SessionError,
    ShardIndexError,
    ShoalError,
    ShoalWarning,
    StaleIndexError,
    StoreError,
    StoreTimeoutError,
    TarError,
    TooLargeError,
    TruncatedError,
    UnsafeCodecError,
    UnsafeNameError,
    UnsupportedMemberError,
    UntrustedError,
    WorkerError,
    WriteError,
)

if TYPE_CHECKING:
    from .build import build_shards
    from .codec import register_codec
    from .dataset import Dataset, DatasetDict, F, concat, load_dataset, load_shards, mix, write_samples
    from .formats import register_format
    from .load import DataLoader, LoaderOptions, LoaderStats, SampleBatch, ThreadingOptions
    from .local import LocalIndex, Repo
    from .order import DistributedSampler, SequentialSampler, ShufflingSampler, State, WeightedSampler
    from .sample import DictSample, Fields, Lens, PackableSample, check_laws, lens, packable, structural_lens
    from .schema import Array, Audio, Image, Schema
    from .shard import KeyRule, ShardingService, ShardWriter

__version__ = "0.1.0.dev0"

__all__ = [
    "AccessDeniedError",
    "Array",
    "AtmosphereError",
    "Audio",
    "CatalogConflictError",
    "CatalogConnectionError",
    "CatalogError",
    "CatalogKeyError",
    "ChecksumError",
    "CodecError",
    "ColumnError",
    "DataLoader",
    "Dataset",
    "DatasetDict",
    "DecodeError",
    "DictSample",
    "DistributedSampler",
    "DuplicateFieldError",
    "EncodeError",
    "ErrorBudgetExceeded",
    "F",
    "FieldError",
    "Fields",
    "FormatError",
    "HeaderError",
    "Image",
    "InterleavedKeyError",
    "KeyRule",
    "Lens",
    "LensError",
    "LensNotFoundError",
    "LoaderError",
    "LoaderOptions",
    "LoaderStateError",
    "LoaderStats",
    "LoaderTimeoutError",
    "LocalIndex",
    "ManifestError",
    "MissingExtraError",
    "ObjectChangedError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "OptionError",
    "PackableSample",
    "PatternError",
    "PositionError",
    "QueryError",
    "RateLimitError",
    "RecordError",
    "RecordNotFoundError",
    "Repo",
    "SampleBatch",
    "SampleKeyError",
    "Schema",
    "SchemaError",
    "SchemaMismatchError",
    "SequentialSampler",
    "SessionError",
    "ShardIndexError",
    "ShardWriter",
    "ShardingService",
    "ShoalError",
    "ShoalWarning",
    "ShufflingSampler",
    "StaleIndexError",
    "State",
    "StoreError",
    "StoreTimeoutError",
    "TarError",
    "ThreadingOptions",
    "TooLargeError",
    "TruncatedError",
    "UnsafeCodecError",
    "UnsafeNameError",
    "UnsupportedMemberError",
    "UntrustedError",
    "WeightedSampler",
    "WorkerError",
    "WriteError",
    "build_shards",
    "check_laws",
    "concat",
    "lens",
    "load_dataset",
    "load_shards",
    "mix",
    "packable",
    "register_codec",
    "register_format",
    "structural_lens",
    "write_samples",
]

_PACKAGES = {
    "Array": "schema",
    "Audio": "schema",
    "DataLoader": "load",
    "Dataset": "dataset",
    "DatasetDict": "dataset",
    "DictSample": "sample",
    "DistributedSampler": "order",
    "F": "dataset",
    "Fields": "sample",
    "Image": "schema",
    "KeyRule": "shard",
    "Lens": "sample",
    "LoaderOptions": "load",
    "LoaderStats": "load",
    "LocalIndex": "local",
    "PackableSample": "sample",
    "Repo": "local",
    "SampleBatch": "load",
    "Schema": "schema",
    "SequentialSampler": "order",
    "ShardWriter": "shard",
    "ShardingService": "shard",
    "ShufflingSampler": "order",
    "State": "order",
    "ThreadingOptions": "load",
    "WeightedSampler": "order",
    "build_shards": "build",
    "check_laws": "sample",
    "concat": "dataset",
    "lens": "sample",
    "load_dataset": "dataset",
    "load_shards": "dataset",
    "mix": "dataset",
    "packable": "sample",
    "register_codec": "codec",
    "register_format": "formats",
    "structural_lens": "sample",
    "write_samples": "dataset",
}


_MODULES = frozenset(
    {
        "adapt",
        "atmosphere",
        "build",
        "codec",
        "dataset",
        "errors",
        "formats",
        "hf",
        "hub",
        "jax",
        "load",
        "local",
        "order",
        "plaid",
        "promote",
        "protocols",
        "ray",
        "sample",
        "schema",
        "shard",
        "store",
        "testing",
        "tf",
        "torch",
        "viewer",
    }
)
"""Public modules that ``import shoal`` does not import: ``shoal.torch`` is imported on first access."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _PACKAGES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(f".{_PACKAGES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
