"""Every function has the parameters that were promised, and the backend those that PLAID's protocol names."""

from __future__ import annotations

import inspect

import pytest
from plaid.storage.backend_api import BackendModule
from plaid.storage.registry import get_backend

import shoal.plaid

REQUIRED = inspect.Parameter.empty
PROMISED = {
    "init_datasetdict_from_disk": {"path": REQUIRED},
    "download_datasetdict_from_hub": {
        "repo_id": REQUIRED,
        "local_dir": REQUIRED,
        "split_ids": None,
        "features": None,
        "overwrite": False,
    },
    "init_datasetdict_streaming_from_hub": {"repo_id": REQUIRED, "split_ids": None, "features": None},
    "generate_datasetdict_to_disk": {
        "output_folder": REQUIRED,
        "generators": REQUIRED,
        "variable_schema": REQUIRED,
        "gen_kwargs": None,
        "num_proc": 1,
        "verbose": False,
        "sample_callback": None,
        "worker_initializer": None,
    },
    "push_local_datasetdict_to_hub": {"repo_id": REQUIRED, "local_dir": REQUIRED, "num_workers": 1},
    "configure_dataset_card": {
        "repo_id": REQUIRED,
        "infos": REQUIRED,
        "local_dir": None,
        "viewer": None,
        "pretty_name": None,
        "dataset_long_description": None,
        "illustration_urls": None,
        "arxiv_paper_urls": None,
    },
    "to_var_sample_dict": {"wds_sample": REQUIRED, "idx": REQUIRED, "features": None, "indexers": None},
    "sample_to_var_sample_dict": {"wds_sample": REQUIRED},
    "WebDatasetWrapper": {"tar_path": REQUIRED, "cache": False},
    "register": {},
}


def defaults(function):
    return {name: each.default for name, each in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("name", PROMISED)
def test_a_function_takes_what_was_promised(name):
    assert defaults(getattr(shoal.plaid, name)) == PROMISED[name]


def test_the_dict_of_splits_takes_anything_else_as_an_attribute():
    found = inspect.signature(shoal.plaid.WebDatasetDict).parameters
    assert list(found) == ["path", "split_tar_paths", "kwargs"]
    assert found["kwargs"].kind is inspect.Parameter.VAR_KEYWORD


PROTOCOL = [name for name, each in vars(BackendModule).items() if isinstance(each, staticmethod)]


@pytest.mark.parametrize("name", PROTOCOL)
def test_the_backend_takes_what_plaid_names(name):
    theirs, ours = defaults(getattr(BackendModule, name)), defaults(getattr(get_backend("webdataset"), name))
    assert list(ours.items())[: len(theirs)] == list(theirs.items())
    assert set(ours) - set(theirs) <= {"sample_callback", "worker_initializer"}  # which the next PLAID adds


def test_the_protocol_is_not_empty():
    assert len(PROTOCOL) == 8
    assert isinstance(get_backend("webdataset"), BackendModule)


def test_the_aliases(leaky_peer):
    import webdataset

    assert shoal.plaid.WebDatasetPipeline is webdataset.WebDataset
    assert shoal.plaid.WebDatasetSample == dict[str, __import__("typing").Any]
    with pytest.raises(AttributeError, match="nothing"):
        _ = shoal.plaid.nothing
