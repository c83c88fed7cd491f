"""The index of a shard: what lies where, as columns. Made of a scan or of what a writer wrote, stored, checked."""

from ._arrow import as_arrow, text_array, text_edges
from ._assemble import MOST_WIDE_FIELDS, MemberColumns, assemble, refuse_duplicates
from ._build import BLOCK_BYTES, BlockCutter, build_index
from ._columns import MOST_COLUMNS, ColumnCollector, extractor_for
from ._edges import Edges, edges_from
from ._index import Blocks, Extents, IndexFacts, KnownIndex, LongExtents, ShardIndex, load_index, save_index
from ._member_log import MemberLog
from ._ranges import PART_BYTES, SpanPart, row_ranges, span_parts, span_ranges

__all__ = [
    "BLOCK_BYTES",
    "MOST_COLUMNS",
    "MOST_WIDE_FIELDS",
    "PART_BYTES",
    "BlockCutter",
    "Blocks",
    "ColumnCollector",
    "Edges",
    "Extents",
    "IndexFacts",
    "KnownIndex",
    "LongExtents",
    "MemberColumns",
    "MemberLog",
    "ShardIndex",
    "SpanPart",
    "as_arrow",
    "assemble",
    "build_index",
    "edges_from",
    "extractor_for",
    "load_index",
    "refuse_duplicates",
    "row_ranges",
    "save_index",
    "span_parts",
    "span_ranges",
    "text_array",
    "text_edges",
]
