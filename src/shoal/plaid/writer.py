"""Write PLAID datasets to disk and push them to the Hugging Face Hub."""

from __future__ import annotations

from ._hub import configure_dataset_card, push_local_datasetdict_to_hub
from ._writer import generate_datasetdict_to_disk, write_sample_to_tar

__all__ = ["configure_dataset_card", "generate_datasetdict_to_disk", "push_local_datasetdict_to_hub"]

_write_sample_to_tar = write_sample_to_tar
