"""Tar shards: scanning, indexing, reading, writing."""
