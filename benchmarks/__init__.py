"""One script a question, each run beside the peers and beside the physical limit, printing ratios.

``make bench`` runs them all and writes RESULTS.md; ``python -m benchmarks.read_sequential`` runs one.
``python -m benchmarks compare OLD [NEW]`` compares two commits, and
``python -m benchmarks.path_length`` counts what a batch runs.
"""
