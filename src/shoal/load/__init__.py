"""Batches of typed samples: fields gathered from the shards' bytes, not decoded sample by sample."""

from ._batch import SampleBatch
from ._typed import PayloadRun, Ragged, TypedColumns

__all__ = ["PayloadRun", "Ragged", "SampleBatch", "TypedColumns"]
