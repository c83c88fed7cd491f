"""Datasets taken apart and put together: split, concat, join, mix."""
