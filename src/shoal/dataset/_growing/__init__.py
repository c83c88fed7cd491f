"""Datasets that grow and shrink: append, refresh, tombstones."""
