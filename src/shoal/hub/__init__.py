"""The Hugging Face Hub: push datasets, fetch parts of them, and read them where they are.

Reading needs nothing but the URL: ``shoal.Dataset("hf://datasets/org/name@revision")`` and ``shoal.load_dataset`` read
ranges of the shards, served by ``shoal.store``. ``push_to_hub`` uses the real client and needs ``shoal[hub]``;
``download`` does not. A dataset that was pushed is read by Hugging Face `datasets` without any configuration.
"""

from ._card import Card, CardOptions, dataset_card
from ._client import client_of, hub_url, patiently
from ._download import download
from ._push import Pushed, push_to_hub

__all__ = [
    "Card",
    "CardOptions",
    "Pushed",
    "client_of",
    "dataset_card",
    "download",
    "hub_url",
    "patiently",
    "push_to_hub",
]
