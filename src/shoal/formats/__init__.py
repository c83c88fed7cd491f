"""Formats: how a path becomes a :class:`~shoal.shard.Source` of numbered samples.

``open_source`` is what ``Dataset`` calls. Each format is one function, registered under a name and its file endings;
anyone may add one with ``register_format``.
"""

from . import webdataset
from ._registry import Format, SourceOptions, detect, formats, open_source, register_format

__all__ = ["Format", "SourceOptions", "detect", "formats", "open_source", "register_format", "webdataset"]
