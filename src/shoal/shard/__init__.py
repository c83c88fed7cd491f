"""Tar shards: scanned, indexed, read, written, verified.

The layout of one shard's life, file by file: ``_header`` reads and builds 512 bytes, ``_entries`` and ``_scan`` walk an
archive, ``_keys`` groups members into samples, ``_build`` makes an index of what was found, ``_index`` stores it,
``_open`` finds it again, ``_shard`` reads samples by it, ``_source`` makes many shards one sequence. ``_stream`` reads
without an index. ``_write`` writes, ``_verify`` finds what is wrong.
"""

from ._arrow import as_arrow
from ._build import build_index
from ._compress import COMPRESSIONS, Compression, decompressed, reader_stream, sniff
from ._copy import copy_samples
from ._cut import Cuts
from ._feed import Feed, ReaderFeed, StreamFeed, SupportsRead
from ._foresee import Reads, foresee, foresee_held
from ._held import HeldShard, can_copy, hold_shard, sample_spans
from ._index import Blocks, Extents, IndexFacts, ShardIndex, load_index, save_index
from ._interop_dali import export_dali_idx, import_dali
from ._interop_energon import export_tar_idx, import_energon
from ._interop_wids import WidsShard, check_wids, export_wids, import_wids
from ._journal import UnfinishedWrite, commit_staged, recover, staging_url, unfinished_writes
from ._keys import WEBDATASET_RULE, KeyRule, key_hint, split_name
from ._locate import SHARD_ENDINGS, Located, is_dataset_folder, locate_existing, locate_shards, shards_by_split
from ._manifest import (
    Manifest,
    ShardRecord,
    encode_manifest,
    find_split,
    joined_schema,
    load_manifest,
    manifest_url,
    merge_shards,
    save_manifest,
    split_alias,
    split_of,
    update_manifest,
)
from ._names import check_key
from ._open import cached_index_url, find_index, fitting_index, index_shard, index_url, open_shard
from ._pack import FolderPlan, FolderSample, plan_folder
from ._policy import ErrorLog, ErrorPolicy, OnError
from ._raw import RawField, join_raw
from ._record import Member, field_totals, members_of, record_of
from ._resident import Resident
from ._rows import Decoders, Sample
from ._sample_encoder import EncodedSample, SampleEncoder
from ._scan import Chunk, Gap, ScanOptions, scan
from ._service import ShardingService
from ._shard import Shard
from ._shard_file import ShardFile, WrittenShard
from ._source import Pick, ShardRef, ShardSource, Source
from ._stream import SampleStream, StreamOptions
from ._verify import Problem, ShardReport, VerifyOptions, verify_dataset, verify_shard, with_hashes
from ._window import Foresight, SampleWindow
from ._write import META_MEMBER, ShardWriter, WriteOptions

__all__ = [
    "COMPRESSIONS",
    "META_MEMBER",
    "SHARD_ENDINGS",
    "WEBDATASET_RULE",
    "Blocks",
    "Chunk",
    "Compression",
    "Cuts",
    "Decoders",
    "EncodedSample",
    "ErrorLog",
    "ErrorPolicy",
    "Extents",
    "Feed",
    "FolderPlan",
    "FolderSample",
    "Foresight",
    "Gap",
    "HeldShard",
    "IndexFacts",
    "KeyRule",
    "Located",
    "Manifest",
    "Member",
    "OnError",
    "Pick",
    "Problem",
    "RawField",
    "ReaderFeed",
    "Reads",
    "Resident",
    "Sample",
    "SampleEncoder",
    "SampleStream",
    "SampleWindow",
    "ScanOptions",
    "Shard",
    "ShardFile",
    "ShardIndex",
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
    "commit_staged",
    "copy_samples",
    "decompressed",
    "encode_manifest",
    "export_dali_idx",
    "export_tar_idx",
    "export_wids",
    "field_totals",
    "find_index",
    "find_split",
    "fitting_index",
    "foresee",
    "foresee_held",
    "hold_shard",
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
    "open_shard",
    "plan_folder",
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
