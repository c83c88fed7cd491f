"""A tar's bytes, both ways: headers, entries, a walk over an archive, members laid out, names as keys and fields."""

from ._behind import WriteBehind
from ._crc import crc32
from ._feed import Feed, ReaderFeed, StreamFeed, SupportsRead
from ._header import BLOCK, MOST_PLAIN_NAME, MOST_PLAIN_SIZE, REGULAR, padded, parse_header
from ._heap import keep_freed_memory
from ._keys import META_MEMBER, OF_THE_SHARD, WEBDATASET_RULE, Grouped, Grouper, KeyRule, key_hint, split_name
from ._layout import lay_out, member_bytes
from ._names import check_field, check_key
from ._scan import Chunk, Gap, ScanOptions, scan

__all__ = [
    "BLOCK",
    "META_MEMBER",
    "MOST_PLAIN_NAME",
    "MOST_PLAIN_SIZE",
    "OF_THE_SHARD",
    "REGULAR",
    "WEBDATASET_RULE",
    "Chunk",
    "Feed",
    "Gap",
    "Grouped",
    "Grouper",
    "KeyRule",
    "ReaderFeed",
    "ScanOptions",
    "StreamFeed",
    "SupportsRead",
    "WriteBehind",
    "check_field",
    "check_key",
    "crc32",
    "keep_freed_memory",
    "key_hint",
    "lay_out",
    "member_bytes",
    "padded",
    "parse_header",
    "scan",
    "split_name",
]
