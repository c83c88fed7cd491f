"""Tar shards: scanned, indexed, read, written, verified.

A module uses only those before it in this order (a test sees to it): ``_background_io``, ``_tar_header``,
``_member_names`` and ``_tar_scan`` read and lay out a tar's bytes; ``_compression`` unpacks them;
``_metadata_columns``, ``_index`` and ``_index_build`` say where every field lies; ``_read_plan``, ``_byte_reader``,
``_shard`` and ``_stream`` read one shard; ``_foreign_index`` and ``_foreign_formats`` take over the indexes of other
loaders; ``_shard_file`` is one shard being written; ``_open_shards``, ``_manifest`` and ``_journal`` find and keep what
lies beside the tars; ``_random_access``, ``_prefetch``, ``_source``, ``_memory_cache``, ``_shuffle_window``,
``_discovery`` and ``_read_cost`` make many shards one sequence; ``_writer`` and ``_copy`` write; ``_verify`` finds what
is wrong.
"""

from ._background_io import crc32
from ._byte_reader import ScatterSpec
from ._compression import COMPRESSIONS, Compression, decompressed, reader_stream, sniff
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
from ._index import Blocks, Extents, IndexMetadata, ShardIndex, damaged, load_index, save_index
from ._index_build import build_index
from ._journal import UnfinishedWrite, commit_staged, recover, staging_url, unfinished_writes
from ._manifest import (
    Manifest,
    Member,
    ShardRecord,
    encode_manifest,
    field_totals,
    find_split,
    joined_schema,
    load_manifest,
    manifest_url,
    members_of,
    merge_shards,
    record_of,
    save_manifest,
    split_alias,
    split_of,
    update_manifest,
)
from ._member_names import META_MEMBER, WEBDATASET_RULE, KeyRule, check_key, key_hint, split_name
from ._memory_cache import ShardMemoryCache
from ._metadata_columns import as_arrow
from ._open_shards import cached_index_url, find_index, fitting_index, index_shard, index_url, open_shard
from ._read_cost import ReadCost, estimate_cached_reads, estimate_reads
from ._shard import Decoders, RawField, Sample, Shard, join_raw
from ._shard_file import EncodedSample, SampleEncoder, ShardFile, WrittenShard
from ._shuffle_window import ReadSchedule, SampleWindow
from ._source import FieldSelector, ShardRef, ShardSource, Source, checked_rows
from ._stream import ErrorLog, ErrorPolicy, OnError, SampleStream, StreamOptions
from ._tar_header import BLOCK
from ._tar_scan import Chunk, Feed, ReaderFeed, ScanOptions, StreamFeed, SupportsRead, UnreadableRange, scan
from ._verify import Problem, ShardReport, VerifyOptions, verify_dataset, verify_shard, with_hashes
from ._writer import ShardingService, ShardWriter, WriteOptions

__all__ = [
    "BLOCK",
    "COMPRESSIONS",
    "META_MEMBER",
    "SHARD_ENDINGS",
    "WEBDATASET_RULE",
    "Blocks",
    "Chunk",
    "Compression",
    "CopySource",
    "Decoders",
    "EncodedSample",
    "ErrorLog",
    "ErrorPolicy",
    "Extents",
    "Feed",
    "FieldSelector",
    "IndexMetadata",
    "KeyRule",
    "Manifest",
    "Member",
    "OnError",
    "Problem",
    "RawField",
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
    "ShardIndex",
    "ShardList",
    "ShardMemoryCache",
    "ShardRecord",
    "ShardRef",
    "ShardReport",
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
    "build_index",
    "cached_index_url",
    "can_copy",
    "check_key",
    "check_wids",
    "checked_rows",
    "commit_staged",
    "copy_samples",
    "crc32",
    "damaged",
    "decompressed",
    "encode_manifest",
    "estimate_cached_reads",
    "estimate_reads",
    "export_dali_idx",
    "export_tar_idx",
    "export_wids",
    "field_totals",
    "find_index",
    "find_split",
    "fitting_index",
    "import_dali",
    "import_energon",
    "import_wids",
    "index_shard",
    "index_url",
    "is_dataset_folder",
    "join_raw",
    "joined_schema",
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
    "reader_stream",
    "record_of",
    "recover",
    "sample_spans",
    "save_index",
    "save_manifest",
    "scan",
    "shards_by_split",
    "sniff",
    "split_alias",
    "split_name",
    "split_of",
    "staging_url",
    "unfinished_writes",
    "update_manifest",
    "verify_dataset",
    "verify_shard",
    "with_hashes",
]
