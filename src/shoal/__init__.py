"""shoal: plain tar shards as typed, indexed, searchable, exactly resumable datasets."""

__version__ = "0.1.0.dev0"
