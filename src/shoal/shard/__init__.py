"""Tar shards: scan, index, read, write and verify them.

Modules, lowest first; each imports only modules named before it, which a test checks:

- bytes of a tar: ``_background_thread``, ``_tar_header``, ``_member_names``, ``_tar_scan``, ``_compression``
- index of one shard: ``_arrow_arrays``, ``_metadata_columns``, ``_index``, ``_byte_reader``, ``_index_build``
- reading one shard: ``_read_plan``, ``_shard``, ``_stream``
- indexes of other libraries: ``_foreign_index``, ``_foreign_formats``
- one shard being written: ``_shard_file``
- files beside the tars: ``_open_shards``, ``_manifest``, ``_journal``, ``_split_names``
- many shards as one sequence: ``_random_access``, ``_prefetch``, ``_source``, ``_memory_cache``, ``_shuffle_window``,
  ``_discovery``, ``_read_cost``
- writing and checking datasets: ``_writer``, ``_sharding_service``, ``_copy``, ``_verify``
"""

from shoal._crc32 import crc32

from ._arrow_arrays import as_arrow, as_floats
from ._byte_reader import ScatterSpec
from ._compression import COMPRESSIONS, Compression, decompressed, open_unpacked, reader_stream, sniff
from ._copy import CopySource, can_copy, copy_samples, open_copy_source, sample_spans
from ._discovery import SHARD_ENDINGS, ShardList, is_dataset_folder, locate_existing, locate_shards, shards_by_split
from ._foreign_formats import (
    WidsShard,
    check_wids,
    export_dali_idx,
    export_tar_idx,
    export_wids,
    import_dali,
    import_energon,
    import_wids,
)
from ._index import load_index, save_index
from ._index_build import build_index
from ._journal import UnfinishedWrite, unfinished_writes
from ._manifest import (
    Manifest,
    ShardRecord,
    load_manifest,
    manifest_url,
    merge_shards,
    record_of,
)
from ._member_names import META_MEMBER, WEBDATASET_RULE, KeyRule, check_key, key_hint, split_name
from ._memory_cache import ShardMemoryCache
from ._open_shards import index_shard, open_shard
from ._read import BytesColumn
from ._read_plan import ReadCost
from ._shard import Decoders, Sample, Shard
from ._shard_file import EncodedSample, SampleEncoder, ShardFile, WrittenShard
from ._shard_rows import Blocks, FieldExtents, IndexMetadata, Member, ShardRows, damaged, field_totals, members_of
from ._sharding_service import ShardingService
from ._shuffle_window import ReadSchedule, SampleWindow
from ._source import FieldSelector, ShardSource, Source
from ._split_names import find_split, split_alias, split_of
from ._stream import ErrorLog, ErrorPolicy, OnError, SampleStream, StreamOptions
from ._table import ShardRef, checked_rows, column_error, join_columns, refuse_unknown_column
from ._tar_header import BLOCK
from ._tar_scan import Chunk, Feed, ReaderFeed, ScanOptions, StreamFeed, SupportsRead, UnreadableRange, scan
from ._verify import Problem, ShardReport, VerifyOptions, verify_dataset, verify_shard, with_hashes
from ._writer import ShardWriter, WriteOptions

__all__ = [
    "BLOCK",
    "COMPRESSIONS",
    "META_MEMBER",
    "SHARD_ENDINGS",
    "WEBDATASET_RULE",
    "Blocks",
    "BytesColumn",
    "Chunk",
    "Compression",
    "CopySource",
    "Decoders",
    "EncodedSample",
    "ErrorLog",
    "ErrorPolicy",
    "Feed",
    "FieldExtents",
    "FieldSelector",
    "IndexMetadata",
    "KeyRule",
    "Manifest",
    "Member",
    "OnError",
    "Problem",
    "ReadCost",
    "ReadSchedule",
    "ReaderFeed",
    "Sample",
    "SampleEncoder",
    "SampleStream",
    "SampleWindow",
    "ScanOptions",
    "ScatterSpec",
    "Shard",
    "ShardFile",
    "ShardList",
    "ShardMemoryCache",
    "ShardRecord",
    "ShardRef",
    "ShardReport",
    "ShardRows",
    "ShardSource",
    "ShardWriter",
    "ShardingService",
    "Source",
    "StreamFeed",
    "StreamOptions",
    "SupportsRead",
    "UnfinishedWrite",
    "UnreadableRange",
    "VerifyOptions",
    "WidsShard",
    "WriteOptions",
    "WrittenShard",
    "as_arrow",
    "as_floats",
    "build_index",
    "can_copy",
    "check_key",
    "check_wids",
    "checked_rows",
    "column_error",
    "copy_samples",
    "crc32",
    "damaged",
    "decompressed",
    "export_dali_idx",
    "export_tar_idx",
    "export_wids",
    "field_totals",
    "find_split",
    "import_dali",
    "import_energon",
    "import_wids",
    "index_shard",
    "is_dataset_folder",
    "join_columns",
    "key_hint",
    "load_index",
    "load_manifest",
    "locate_existing",
    "locate_shards",
    "manifest_url",
    "members_of",
    "merge_shards",
    "open_copy_source",
    "open_shard",
    "open_unpacked",
    "reader_stream",
    "record_of",
    "refuse_unknown_column",
    "sample_spans",
    "save_index",
    "scan",
    "shards_by_split",
    "sniff",
    "split_alias",
    "split_name",
    "split_of",
    "unfinished_writes",
    "verify_dataset",
    "verify_shard",
    "with_hashes",
]
