"""PLAID's pattern of tests for all of its storage backends, with ``backend="webdataset"`` among them."""

from __future__ import annotations

import numpy as np
import pytest
from plaid.storage import init_from_disk, load_problem_definitions_from_disk, registry, save_to_disk
from plaid.storage.backend_api import BackendModule
from tests.plaid import physics
from tests.plaid.physics import GLOBAL, IDS

import shoal.plaid


class Test_Storage:  # noqa: N801 - PLAID's name for it
    def test_webdataset(self, tmp_path, generator_split, infos, problem_definition):
        folder = physics.saved(tmp_path / "d", pb_defs={"pb_def": problem_definition}, overwrite=True, verbose=True)
        with pytest.raises(ValueError, match="already exists"):
            physics.saved(folder)
        physics.saved(folder, overwrite=True)
        datasets, converters = init_from_disk(folder)
        sample = converters["train"].to_plaid(datasets["train"], 1)
        assert sample.get_feature_by_path(GLOBAL) == pytest.approx(1 / 8)
        assert sample.get_field("speed").shape == (physics.NODES,)

    def test_registry(self):
        backends = registry.available_backends()
        assert "webdataset" in backends
        webdataset_module = registry.get_backend("webdataset")
        assert webdataset_module is not None
        assert isinstance(webdataset_module, BackendModule)
        before = dict(registry.BACKENDS)
        shoal.plaid.register()
        assert before == registry.BACKENDS
        assert list(before)[:3] == ["cgns", "hf_datasets", "zarr"]

    def test_problem_definition_round_trip(self, tmp_path, problem_definition):
        folder = physics.saved(tmp_path / "d", pb_defs={"problem": problem_definition})
        found = load_problem_definitions_from_disk(folder)["problem"]
        assert found == problem_definition
        datasets, converters = init_from_disk(folder)
        sample = converters["train"].to_plaid(datasets["train"], 0)
        for path in [*found.input_features, *found.output_features]:
            assert sample.get_feature_by_path(path) is not None

    @pytest.mark.parametrize("backend", ["cgns", "zarr", "hf_datasets"])
    def test_the_other_backends_still_pass(self, tmp_path, backend, leaky_peer):
        folder = physics.saved(tmp_path / "d", ids={"train": [1, 2]}, backend=backend)
        datasets, converters = init_from_disk(folder)
        for place, number in enumerate([1, 2]):
            found = converters["train"].to_plaid(datasets["train"], place)
            np.testing.assert_array_equal(found.get_field("speed"), physics.make_sample(number).get_field("speed"))

    def test_a_saved_dataset_in_parallel_is_the_same(self, tmp_path):
        folders = [tmp_path / "one", tmp_path / "two"]
        for folder, processes in zip(folders, (1, 2), strict=True):
            save_to_disk(folder, physics.make_sample, IDS, physics.infos(), "webdataset", num_proc=processes)
        one, two = ([path.read_bytes() for path in sorted((root / "data").rglob("*.tar"))] for root in folders)
        assert one == two
