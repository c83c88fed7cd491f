"""Ways to a dataset: by path, by reference, from samples."""
