"""One script a question, each run beside the peers and beside the physical limit, printing ratios.

``make bench`` runs them all and writes RESULTS.md; ``python -m benchmarks.read_sequential`` runs one.
"""
