"""The backend seen from PLAID: its own pattern of tests for a storage backend, with ``backend="webdataset"``."""

from __future__ import annotations

import numpy as np
import plaid.storage
import pytest
from plaid import Sample
from plaid.storage import init_from_disk
from plaid.storage.common.preprocessor import build_sample_dict, preprocess
from tests.plaid import physics
from tests.plaid.physics import FIELD, GLOBAL, IDS, SPEED

import shoal.plaid
from shoal.errors import FieldError
from shoal.plaid import WebDatasetDict, WebDatasetWrapper


def assert_sample(found, number):
    """The tree of the sample that was saved under this number."""
    assert isinstance(found, Sample)
    expected = build_sample_dict(physics.make_sample(number))[0]
    physics.same_values(build_sample_dict(found)[0], expected)


class TestWebDataset:
    def test_write_and_read_local(self, tmp_path, generator_split, infos, problem_definition):
        schema = preprocess(generator_split, verbose=False)[1]
        shoal.plaid.generate_datasetdict_to_disk(tmp_path / "direct", generator_split, schema)
        folder = physics.saved(tmp_path / "saved", pb_defs={"problem": problem_definition})
        assert plaid.storage.load_infos_from_disk(folder).storage_backend == "webdataset"
        for root in (tmp_path / "direct", folder):
            splits = shoal.plaid.init_datasetdict_from_disk(root)
            assert {name: len(split) for name, split in splits.items()} == {"train": 5, "test": 3}
            for name, ids in IDS.items():
                for place, number in enumerate(ids):
                    flat = build_sample_dict(physics.make_sample(number))[0]
                    physics.same_values(splits[name][place], {path: flat.get(path) for path in schema})

    def test_sample_iteration(self, tmp_path, generator_split, infos, problem_definition):
        datasets, converters = init_from_disk(physics.saved(tmp_path / "d"))
        for name, ids in IDS.items():
            for number, sample in zip(ids, datasets[name], strict=True):
                assert_sample(converters[name].sample_to_plaid(sample), number)
            assert list(datasets[name].ids) == list(range(len(ids)))

    def test_converter_operations(self, tmp_path, generator_split, infos, problem_definition):
        datasets, converters = init_from_disk(physics.saved(tmp_path / "d"), splits=["train"])
        assert list(converters) == ["train"]
        dataset, converter = datasets["train"], converters["train"]
        assert repr(converter) == "Converter(backend=webdataset)"
        sample = converter.to_plaid(dataset, 1)
        assert_sample(sample, 1)
        assert_sample(converter.sample_to_plaid(dataset[1]), 1)
        assert converter.to_dict(dataset, 1).keys() == converter.sample_to_dict(dataset[1]).keys() == {0.0}
        stored = converter.plaid_to_dict(sample)
        np.testing.assert_array_equal(stored[FIELD], dataset[1][FIELD])
        picked = converter.to_dict(dataset, 1, features=[SPEED], indexers={SPEED: slice(2, 5)})
        np.testing.assert_array_equal(picked[0.0][SPEED], dataset[1][SPEED][2:5])

    def test_feature_filtering(self, tmp_path, generator_split, infos, problem_definition):
        datasets, converters = init_from_disk(physics.saved(tmp_path / "d"))
        dataset, converter = datasets["test"], converters["test"]
        few = converter.to_dict(dataset, 1, features=[FIELD, GLOBAL])[0.0]
        assert {FIELD, GLOBAL} <= few.keys()
        assert SPEED not in few
        assert converter.to_plaid(dataset, 1, features=[FIELD]).get_field_names() == ["pressure"]
        for wrong in ("dummy", "Global/mach"):
            with pytest.raises(KeyError):
                converter.to_dict(dataset, 0, features=[wrong])
            with pytest.raises(FieldError, match=f"no such variable feature.*{wrong}"):
                dataset.read(0, [wrong])

    @pytest.mark.usefixtures("leaky_peer")
    def test_webdataset_dict_class(self, tmp_path, generator_split, infos, problem_definition):
        folder = physics.saved(tmp_path / "d")
        found = shoal.plaid.init_datasetdict_from_disk(folder)
        assert isinstance(found, WebDatasetDict)
        assert (len(found), list(found), found.path) == (2, ["train", "test"], folder)
        assert repr(found) == f"<WebDatasetDict {folder}: train, test>"
        tars = found.split_tar_paths
        assert tars["test"] == [folder / "data" / "test" / f"shard-00000{number}.tar" for number in range(3)]
        made = WebDatasetDict(folder, {"all": tars["train"], "one": tars["test"][1]}, owner="us")
        assert made.owner == "us"
        made.seen = 3
        assert made.seen == 3
        assert isinstance(made["all"], WebDatasetWrapper)
        assert made["all"] is made["all"]
        assert (made["one"].ids.tolist(), made["one"].path) == ([1], tars["test"][1].parent)
        for place in range(5):
            physics.same_values(made["all"][place], found["train"][place])
        for ours, theirs in zip(found["train"], found["train"].wds_pipeline, strict=True):
            assert theirs["__key__"].startswith("sample_")  # which webdataset adds
            physics.same_values(shoal.plaid.sample_to_var_sample_dict(theirs), ours)

    def test_parallel_generation(self, tmp_path, generator_split_with_kwargs, gen_kwargs, infos, problem_definition):
        schema = preprocess(generator_split_with_kwargs, gen_kwargs, verbose=False)[1]
        for processes in (1, 2):
            shoal.plaid.generate_datasetdict_to_disk(
                tmp_path / str(processes), generator_split_with_kwargs, schema, gen_kwargs, num_proc=processes
            )
        one, two = (
            {path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
            for root in (tmp_path / "1", tmp_path / "2")
        )
        assert len(one) == 2 * 8 + 1  # shards, indexes and the manifest; nothing else is left
        assert one == two
