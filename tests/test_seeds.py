# ruff: noqa: F811, PT030 - fixtures are imported and are parameters of tests; classes of errors and warnings are the promise
"""The documents this package was written for: their examples, their tests and every name they promise.

This file is a safety net. It knows public names only, compares values, and expects errors by their builtin class, so
that a change inside the package, or of a message, needs no change here.

The blocks of the documents are verbatim, except that the first part of an import is ``shoal`` and that the formatter
chose the quotes and line breaks. What else differs:

| document | block | differs |
| --- | --- | --- |
| 000 autods.shard | load shards in training code | webdataset expands no ``*``: ``sorted(glob(...))`` does |
| 001 Format.WebDataset | tests | Elixir: ``{:ok, items}`` is the value, ``{:error, _}`` is an exception |
| 001 | tests | ``:erl_tar`` stores the path of each file, the document drops it: ``KeyRule(folders="flatten")`` |
| 001 | parse_shards | it passes over archives that cannot be read; here that is asked for: ``on_error="skip"`` |
| 002 atdata | local storage | the endpoint's port, and keys instead of ``...`` |
| 002 | publish | where the PDS and its directory listen, the handle and the password |
| 003 PLAID | all | ``plaid.storage.webdataset`` is ``shoal.plaid``, ``webdataset`` a dependency of its extra |
| 003 | ``BackendSpec`` | gone since PLAID 1.0: a backend is an object with the methods of ``BackendModule`` |
| 003 | ``WebDatasetDict`` | a split has any number of tars, so ``split_tar_paths`` holds lists |
| 003 | the same | iterates over names, as PLAID 1.0 asks; ``items()`` are the pairs of the plan |
| 003 | ``WebDatasetWrapper`` | what a split is, also of a stream; its cache is a dict by number, not a list |
| 003 | ``download_datasetdict_from_hub`` | returns the folder, as PLAID's protocol asks |
| 003 | ``to_var_sample_dict`` | PLAID passes the split rather than a sample; both are taken |
| 003 | documentation | docs/how-to/webdataset_backend.md and docs/tutorial/storage.md |
| 004 s3dlio | ``from_generator(...)`` | ``output_signature`` by keyword; no ``args=[loader]``, as they become tensors |
| 004 | MinIO | another S3 server (SeaweedFS); the bucket of 10,000 objects is in memory |

Where a block needs a server, it is a real one on 127.0.0.1.
"""

from __future__ import annotations

import ast
import bz2
import gzip
import inspect
import io
import itertools
import json
import lzma
import os
import re
import shutil
import tarfile
import threading
import tomllib
from glob import glob
from importlib import import_module
from pathlib import Path

import msgpack
import numpy as np
import plaid.storage
import pytest
from numpy.typing import NDArray
from plaid.storage import init_from_disk, registry
from plaid.storage.common.preprocessor import build_sample_dict, preprocess
from tests.atmosphere.conftest import _own_home, pds, plc  # noqa: F401 - fixtures
from tests.atmosphere.servers import PASSWORD
from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.hub.conftest import hub  # noqa: F401 - a fixture
from tests.local.conftest import redis_url  # noqa: F401 - a fixture
from tests.plaid import physics
from tests.plaid.physics import FIELD, GLOBAL, IDS, SPEED
from tests.store.conftest import _own_options, broken, http, proxy, s3, s3_endpoint  # noqa: F401 - fixtures
from tests.store.servers import ACCESS_KEY, SECRET_KEY

import shoal
import shoal.plaid
from shoal import KeyRule
from shoal.formats import webdataset
from shoal.plaid import bridge, reader, writer

ROOT = Path(__file__).parents[1]


# --------------------------------------------------------------------------------------------------- 000: autods.shard


@pytest.fixture
def labeled_samples():
    return [
        {"image.jpg": b"\xff\xd8" + bytes([n % 256]) * 500, "label.txt": f"label {n}", "metadata": {"annotator": n % 3}}
        for n in range(2500)
    ]


@pytest.mark.filterwarnings("ignore:WebDataset.shardshuffle=:UserWarning")  # webdataset asks for it to be given
def test_seed_000(tmp_path, monkeypatch, leaky_peer, labeled_samples):
    monkeypatch.chdir(tmp_path)
    shard_dir = "./shards"

    from shoal.shard import ShardingService

    # Initialize service
    shard_service = ShardingService(output_dir="./shards", shard_size=1000, compression="gzip")

    # Create shards from labeled data
    shard_paths = shard_service.create_shards_from_data(
        samples=labeled_samples, metadata={"dataset": "my_dataset", "split": "train"}
    )

    # Load shards in training code
    import webdataset as wds

    dataset = wds.WebDataset(sorted(glob(f"{shard_dir}/shard-*.tar")))

    count = 0
    for sample in dataset:
        x = sample["image.jpg"]
        y = sample["label.txt"]
        # Use in training...
        assert x == labeled_samples[count]["image.jpg"]
        assert y == labeled_samples[count]["label.txt"].encode()
        count += 1
    assert count == 2500
    assert shard_paths == sorted(glob(f"{shard_dir}/shard-*.tar"))
    assert len(shard_paths) == 3


def test_seed_000_loaded_here(tmp_path, labeled_samples):
    shoal.ShardingService(tmp_path, compression="gzip").create_shards_from_data(labeled_samples, {"split": "train"})
    dataset = shoal.load_shards(tmp_path, split="train")
    assert len(dataset) == 2500
    assert dataset[2499]["label.txt"] == "label 2499"
    assert len(dataset.where("annotator = 2")) == 833


def labeled(count):
    return [{"image.jpg": bytes([n]) * 50, "label.txt": f"label {n}", "metadata": {"n": n}} for n in range(count)]


def leaves(document):
    """Every string and number in a JSON document."""
    if isinstance(document, dict):
        return leaves(list(document.values()))
    if isinstance(document, list):
        return [leaf for part in document for leaf in leaves(part)]
    return [document]


class TestSeed000PlannedFeatures:
    def test_tar_encoding(self, tmp_path):
        (path,) = shoal.ShardingService(tmp_path).create_shards_from_data(labeled(2))
        with tarfile.open(path) as tar:
            stored = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}
        fields = {name.partition(".")[2]: content for name, content in stored.items() if "1." in name}
        assert fields["image.jpg"] == bytes([1]) * 50
        assert fields["label.txt"] == b"label 1"
        assert json.loads(fields["json"]) == {"n": 1}

    def test_index_generation(self, tmp_path):
        service = shoal.ShardingService(tmp_path, shard_size=2)
        paths = service.create_shards_from_data(labeled(5), metadata={"dataset": "my_dataset", "split": "train"})
        index = leaves(json.loads(Path(service.index_path).read_text()))
        assert [os.path.basename(path) for path in paths] == [
            "shard-000000.tar",
            "shard-000001.tar",
            "shard-000002.tar",
        ]
        assert {os.path.basename(path) for path in paths} <= set(index)
        assert {"my_dataset", "train"} <= set(index)
        assert {os.path.getsize(path) for path in paths} <= set(index)

    def test_distribution(self, tmp_path):
        shoal.ShardingService(tmp_path, shard_size=2).create_shards_from_data(labeled(12))
        dataset = shoal.load_shards(tmp_path)
        parts = [list(dataset.loader(batch_size=1, rank=rank, world_size=3)) for rank in range(3)]
        labels = [[label for batch in part for label in batch["label.txt"]] for part in parts]
        assert [len(part) for part in labels] == [4, 4, 4]
        assert sorted(itertools.chain(*labels)) == sorted(f"label {n}" for n in range(12))

    def test_streaming_support(self, tmp_path):
        taken = []

        def samples():
            for number, sample in enumerate(labeled(6)):
                taken.append((number, len(glob(f"{tmp_path}/shard-*.tar"))))
                yield sample

        shoal.ShardingService(tmp_path, shard_size=2).create_shards_from_data(samples())
        assert taken[-1] == (5, 2)  # two shards are there while the third is made

    def test_cloud_upload(self, s3):
        service = shoal.ShardingService(s3, shard_size=2)
        paths = service.create_shards_from_data(labeled(5), metadata={"dataset": "my_dataset"})
        assert paths == [f"{s3}/shard-{number:06d}.tar" for number in range(3)]
        assert all(shoal.store.exists(path) for path in [*paths, service.index_path])
        assert [sample["label.txt"] for sample in shoal.load_shards(s3)] == [f"label {n}" for n in range(5)]


class TestSeed000ImplementationNotes:
    def test_1_accept_labeled_samples_with_metadata(self, tmp_path):
        shoal.ShardingService(tmp_path).create_shards_from_data(labeled(3), metadata={"dataset": "my_dataset"})
        dataset = shoal.load_shards(tmp_path)
        assert [(sample["label.txt"], sample["json"]) for sample in dataset] == [
            ("label 0", {"n": 0}), ("label 1", {"n": 1}), ("label 2", {"n": 2})
        ]  # fmt: skip
        assert dataset.metadata == {"dataset": "my_dataset"}

    def test_2_group_samples_by_shard_default_1000(self, tmp_path):
        paths = shoal.ShardingService(tmp_path).create_shards_from_data({"txt": "x"} for _ in range(2001))
        assert [len(shoal.Dataset(path)) for path in paths] == [1000, 1000, 1]
        with pytest.raises(ValueError):
            shoal.ShardingService(tmp_path, shard_size=0)

    def test_3_create_tar_archives_with_json_metadata_files(self, tmp_path):
        metadata = {"dataset": "my_dataset", "split": "train"}
        paths = shoal.ShardingService(tmp_path, shard_size=2).create_shards_from_data(labeled(4), metadata=metadata)
        for path in paths:
            with tarfile.open(path) as tar:
                contents = [tar.extractfile(member).read() for member in tar if member.isfile()]
            assert metadata in [json.loads(content) for content in contents if content.startswith(b"{")]

    def test_4_generate_index_file_listing_all_shards(self, tmp_path):
        service = shoal.ShardingService(tmp_path, shard_size=1)
        paths = service.create_shards_from_data(labeled(12))
        listed = [
            leaf for leaf in leaves(json.loads(Path(service.index_path).read_text())) if str(leaf).endswith(".tar")
        ]
        assert listed == [os.path.basename(path) for path in paths]

    @pytest.mark.parametrize("compression, magic", [("gzip", b"\x1f\x8b"), ("xz", b"\xfd7zXZ")])
    def test_5_support_compression(self, tmp_path, leaky_peer, compression, magic):
        import webdataset as wds

        plain = shoal.ShardingService(tmp_path / "plain").create_shards_from_data(labeled(50))
        packed = shoal.ShardingService(tmp_path / "packed", compression=compression).create_shards_from_data(
            labeled(50)
        )
        assert Path(packed[0]).read_bytes().startswith(magic)
        assert os.path.getsize(packed[0]) < os.path.getsize(plain[0]) / 4
        expected = [(f"label {n}", bytes([n]) * 50) for n in range(50)]
        dataset = shoal.load_shards(tmp_path / "packed")
        assert [(sample["label.txt"], sample["image.jpg"]) for sample in dataset] == expected
        theirs = wds.WebDataset(packed, shardshuffle=False)
        assert [(sample["label.txt"].decode(), sample["image.jpg"]) for sample in theirs] == expected
        with pytest.raises(ValueError):
            shoal.ShardingService(tmp_path, compression="rar")

    def test_6_enable_streaming_to_s3_during_creation(self, s3):
        there = []

        def samples():
            for number, sample in enumerate(labeled(6)):
                there.append([shoal.store.exists(f"{s3}/shard-{shard:06d}.tar") for shard in range(3)])
                yield {**sample, "image.jpg": bytes([number]) * 1000}

        shoal.ShardingService(s3, shard_size=2).create_shards_from_data(samples())
        assert there[0] == [False, False, False]
        assert there[-1] == [True, True, False]

    def test_6_a_large_shard_is_uploaded_while_it_is_made(self, broken, proxy):
        sent = []

        def samples():
            for number in range(40):
                yield {"bin": bytes([number]) * (1 << 20)}
            sent.extend(path for method, path, *_ in proxy.requests if method == "PUT" and "shard-000000" in path)

        shoal.ShardingService(broken).create_shards_from_data(samples())
        assert len(sent) > 1
        assert shoal.load_shards(broken)[39]["bin"] == bytes([39]) * (1 << 20)

    def test_7_provide_utilities_for_loading_shards_in_training_code(self, tmp_path):
        service = shoal.ShardingService(tmp_path, shard_size=4)
        service.create_shards_from_data(labeled(10), metadata={"split": "train"})
        dataset = shoal.load_shards(tmp_path, split="train")
        assert isinstance(dataset, shoal.Dataset)
        assert dataset[7]["label.txt"] == "label 7"
        batches = list(dataset.loader(batch_size=4, shuffle=True, seed=1))
        assert [len(batch["label.txt"]) for batch in batches] == [4, 4, 2]
        assert sorted(label for batch in batches for label in batch["label.txt"]) == [f"label {n}" for n in range(10)]
        with pytest.raises(LookupError):
            len(shoal.load_shards(tmp_path, split="test"))
        with pytest.raises(FileNotFoundError):
            len(shoal.load_shards(tmp_path / "nothing"))


# ---------------------------------------------------------------------------------------------- 001: Format.WebDataset


def make_tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def write_tar(path, files):
    path.write_bytes(make_tar(files))
    return str(path)


def numbered(first, stop):
    return [(f"{number:04d}.txt", str(number).encode()) for number in range(first, stop)]


@pytest.fixture
def shards(tmp_path):
    """Twelve samples in four archives."""
    return [write_tar(tmp_path / f"data-{n:05d}.tar", numbered(3 * n, 3 * n + 3)) for n in range(4)]


KEYS = [f"{number:04d}" for number in range(12)]


def keys_of(samples):
    return [sample["__key__"] for sample in samples]


FOUR = {
    "parse": webdataset.parse,
    "stream": lambda path, **options: list(webdataset.stream(path, **options)),
    "parse_shards": lambda path, **options: webdataset.parse_shards([path], **options),
    "stream_shards": lambda path, **options: list(webdataset.stream_shards([path], **options)),
}


@pytest.fixture(params=FOUR)
def read(request):
    """Each of the four functions, as a list of the samples of one archive."""
    return FOUR[request.param]


class TestSeed001:
    """The test module of the document, test by test, for names as :erl_tar writes them and for plain ones."""

    FILES = (
        ("sample001.txt", b"Hello world"),
        ("sample001.json", b'{"label": "cat", "score": 0.95}'),
        ("sample002.txt", b"Goodbye world"),
        ("sample002.json", b'{"label": "dog", "score": 0.87}'),
    )

    @pytest.fixture(params=["", "test/fixtures/webdataset/tmp/"], ids=["plain", "erl_tar"])
    def folder(self, request):
        return request.param

    @pytest.fixture
    def rule(self, folder):
        return {"rule": KeyRule(folders="flatten")} if folder else {}

    @pytest.fixture
    def tar_path(self, tmp_path, folder):
        path = tmp_path / "test.tar"  # compressed, and the name does not say so
        path.write_bytes(gzip.compress(make_tar([(folder + name, content) for name, content in self.FILES])))
        return path

    # describe "parse/2"

    def test_parses_tar_archive_into_samples(self, tar_path, rule):
        items = webdataset.parse(tar_path, **rule)

        assert len(items) == 2

        sample1 = next(item for item in items if item["__key__"] == "sample001")
        assert sample1["txt"] == "Hello world"
        assert sample1["json"]["label"] == "cat"
        assert sample1["json"]["score"] == 0.95

    def test_groups_files_by_key(self, tar_path, rule):
        items = webdataset.parse(tar_path, **rule)

        for item in items:
            assert "__key__" in item
            assert "txt" in item
            assert "json" in item
        assert keys_of(items) == ["sample001", "sample002"]

    def test_decodes_json_by_default(self, tar_path, rule):
        item, *_ = webdataset.parse(tar_path, **rule)

        assert isinstance(item["json"], dict)

    def test_skips_json_decoding_when_decode_false(self, tar_path, rule):
        item, *_ = webdataset.parse(tar_path, decode=False, **rule)

        assert isinstance(item["json"], bytes)
        assert item["json"] == b'{"label": "cat", "score": 0.95}'

    def test_handles_missing_file(self, rule):
        with pytest.raises(FileNotFoundError):
            webdataset.parse("nonexistent.tar", **rule)

    # describe "stream/2"

    def test_returns_a_stream_of_samples(self, tar_path, rule):
        stream = webdataset.stream(tar_path, **rule)

        items = list(stream)
        assert len(items) == 2

    def test_stream_is_lazy(self, tar_path, rule):
        stream = webdataset.stream(tar_path, **rule)

        [first] = itertools.islice(stream, 1)
        assert "__key__" in first
        stream.close()

    # describe "with binary content"

    def test_loads_binary_files_as_is(self, tmp_path, folder, rule):
        # Create tar with binary content
        binary_tar = tmp_path / "binary.tar"
        binary_tar.write_bytes(gzip.compress(make_tar([(f"{folder}sample.jpg", b"\xff\xd8\xff\xe0")])))

        [item] = webdataset.parse(binary_tar, **rule)
        assert item["jpg"] == b"\xff\xd8\xff\xe0"


class TestSeed001Requirements:
    """What the text and the documentation strings of the module say."""

    def test_each_group_of_files_with_the_same_prefix_becomes_one_item(self, read, tmp_path):
        path = write_tar(tmp_path / "archive.tar", [
            ("sample000001.jpg", b"\xff\xd8"),
            ("sample000001.json", b'{"width": 512, "height": 512}'),
            ("sample000001.txt", b"A photo of a cat"),
        ])  # fmt: skip
        assert read(path) == [
            {
                "__key__": "sample000001",
                "jpg": b"\xff\xd8",
                "json": {"width": 512, "height": 512},
                "txt": "A photo of a cat",
            }
        ]

    @pytest.mark.parametrize("decode", [True, False])
    @pytest.mark.parametrize("extension", ["txt", "text", "caption", "cls"])
    def test_text_is_trimmed(self, read, tmp_path, extension, decode):
        path = write_tar(tmp_path / "a.tar", [(f"a.{extension}", b" 7 cats \r\n")])
        assert read(path, decode=decode) == [{"__key__": "a", extension: "7 cats"}]

    def test_json_lines_are_json(self, read, tmp_path):
        path = write_tar(tmp_path / "a.tar", [("a.jsonl", b'{"x": 1}\n{"x": 2}\n')])
        assert read(path) == [{"__key__": "a", "jsonl": [{"x": 1}, {"x": 2}]}]
        assert read(path, decode=False) == [{"__key__": "a", "jsonl": b'{"x": 1}\n{"x": 2}\n'}]

    @pytest.mark.parametrize("extension", ["jpg", "jpeg", "png", "webp", "mp3", "wav", "flac", "bin", "xyz"])
    def test_all_else_is_binary(self, read, tmp_path, extension):
        path = write_tar(tmp_path / "a.tar", [(f"a.{extension}", b" \x00 7 ")])
        assert read(path) == [{"__key__": "a", extension: b" \x00 7 "}]

    def test_numpy_arrays(self, read, tmp_path):
        out = io.BytesIO()
        np.save(out, np.arange(6).reshape(2, 3))
        path = write_tar(tmp_path / "a.tar", [("a.npy", out.getvalue())])
        [sample] = read(path)
        assert np.array_equal(sample["npy"], np.arange(6).reshape(2, 3))
        assert read(path, decode=False) == [{"__key__": "a", "npy": out.getvalue()}]

    def test_only_these_extensions(self, read, tmp_path):
        path = write_tar(tmp_path / "a.tar", [("a.jpg", b"1"), ("a.txt", b"2"), ("a.cls", b"3"), ("b.txt", b"4")])
        assert read(path, extensions=["txt"]) == [{"__key__": "a", "txt": "2"}, {"__key__": "b", "txt": "4"}]
        assert read(path, extensions=[".jpg", ".cls"]) == [{"__key__": "a", "jpg": b"1", "cls": "3"}]

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 99, None])
    def test_at_most_so_many_samples(self, read, shards, count):
        assert keys_of(read(shards[0], max_samples=count)) == KEYS[:3][:count]

    def test_at_most_so_many_samples_of_all_shards(self, shards):
        assert keys_of(webdataset.parse_shards(shards, max_samples=7)) == KEYS[:7]
        assert keys_of(webdataset.stream_shards(shards, max_samples=7)) == KEYS[:7]

    def test_parse_and_stream_of_several_shards(self, shards):
        assert keys_of(webdataset.parse_shards(shards)) == KEYS
        assert keys_of(webdataset.stream_shards(shards)) == KEYS

    def test_shards_that_cannot_be_read_are_passed_over_if_asked(self, shards, tmp_path):
        (tmp_path / "bad.tar").write_bytes(b"not a tar " * 200)
        paths = [shards[0], str(tmp_path / "bad.tar"), str(tmp_path / "missing.tar"), shards[1]]
        with pytest.raises(ValueError):
            webdataset.parse_shards(paths)
        with pytest.warns(UserWarning):
            assert keys_of(webdataset.parse_shards(paths, on_error="skip")) == KEYS[:6]
        with pytest.warns(UserWarning):
            assert keys_of(webdataset.stream_shards(paths, on_error="skip")) == KEYS[:6]

    def test_a_stream_opens_nothing_before_it_is_asked(self, tmp_path):
        for samples in (webdataset.stream(tmp_path / "no.tar"), webdataset.stream_shards([tmp_path / "no.tar"])):
            with pytest.raises(FileNotFoundError):
                next(samples)

    @pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    def test_common_tar_variations(self, read, tmp_path, kind):
        names = ["a.txt", f"{'d' * 90}/{'e' * 90}.txt", "grün.txt"]
        with tarfile.open(tmp_path / "a.tar", "w", format=kind) as tar:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = 2
                tar.addfile(info, io.BytesIO(b"hi"))
        assert read(tmp_path / "a.tar") == [{"__key__": name.removesuffix(".txt"), "txt": "hi"} for name in names]

    def test_an_unknown_option_is_an_error(self, read, shards):
        with pytest.raises(TypeError):
            read(shards[0], extension=["txt"])


class TestSeed001EdgeCases:
    @pytest.mark.parametrize("content", [b"", bytes(1024), make_tar([])], ids=["no bytes", "end mark", "tarfile's"])
    def test_1_empty_archive_gives_an_empty_list(self, read, tmp_path, content):
        (tmp_path / "a.tar").write_bytes(content)
        assert read(tmp_path / "a.tar") == []

    def test_2_corrupted_archive_is_an_error(self, read, tmp_path):
        whole = make_tar(TestSeed001.FILES)
        for damaged in (whole[:1600], whole[:1030] + b"\xff" * 60 + whole[1090:], b"no tar at all " * 100):
            (tmp_path / "a.tar").write_bytes(damaged)
            with pytest.raises(ValueError):
                read(tmp_path / "a.tar")

    def test_2_corrupted_compressed_archive_is_an_error(self, read, tmp_path):
        packed = gzip.compress(make_tar(TestSeed001.FILES))
        for damaged in (packed[:100], packed[:60] + b"\xff" * 20 + packed[80:]):
            (tmp_path / "a.tar.gz").write_bytes(damaged)
            with pytest.raises(ValueError):
                read(tmp_path / "a.tar.gz")

    def test_3_files_without_extensions_are_skipped(self, read, tmp_path):
        path = write_tar(tmp_path / "a.tar", [("README", b"x"), ("a.txt", b"1"), ("Makefile", b"x"), ("b.txt", b"2")])
        assert read(path) == [{"__key__": "a", "txt": "1"}, {"__key__": "b", "txt": "2"}]

    def test_4_nested_directories_are_preserved_or_flattened(self, read, tmp_path):
        path = write_tar(tmp_path / "a.tar", [("d/x.txt", b"1"), ("d/x.cls", b"2"), ("d/e/y.txt", b"3")])
        assert read(path) == [{"__key__": "d/x", "txt": "1", "cls": "2"}, {"__key__": "d/e/y", "txt": "3"}]
        flat = [{"__key__": "x", "txt": "1", "cls": "2"}, {"__key__": "y", "txt": "3"}]
        assert read(path, rule=KeyRule(folders="flatten")) == flat

    def test_5_large_archives_use_streaming(self):
        """Of an archive without end the first samples are given, so no more than a part of it is held."""

        class Endless(io.RawIOBase):
            def __init__(self):
                self.count, self.rest = 0, b""

            def readable(self):
                return True

            def readinto(self, buffer):
                while len(self.rest) < len(buffer):
                    self.rest += make_tar([(f"{self.count:06d}.bin", bytes(1 << 18))])[: 512 + (1 << 18)]
                    self.count += 1
                buffer[:] = self.rest[: len(buffer)]
                self.rest = self.rest[len(buffer) :]
                return len(buffer)

        archive = Endless()
        with webdataset.stream(archive) as samples:
            assert keys_of(itertools.islice(samples, 20)) == [f"{number:06d}" for number in range(20)]
        assert archive.count < 200  # 50 MiB

    @pytest.mark.parametrize(
        "name, pack",
        [
            ("a.tar.gz", gzip.compress),
            ("a.tgz", gzip.compress),
            ("a.tar.bz2", bz2.compress),
            ("a.tar.xz", lzma.compress),
        ],
    )
    def test_6_compressed_archives(self, read, tmp_path, name, pack):
        (tmp_path / name).write_bytes(pack(make_tar(numbered(0, 3))))
        assert keys_of(read(tmp_path / name)) == KEYS[:3]

    def test_7_invalid_json_is_kept_as_a_string(self, read, tmp_path):
        path = write_tar(tmp_path / "a.tar", [("a.json", b'{"broken": '), ("b.json", b'{"x": 1}')])
        assert read(path) == [{"__key__": "a", "json": '{"broken": '}, {"__key__": "b", "json": {"x": 1}}]


class TestSeed001FutureEnhancements:
    def test_1_shard_patterns(self, shards, tmp_path):
        for pattern in ("data-{00000..00003}.tar", "data-*.tar"):
            assert keys_of(webdataset.parse_shards(f"{tmp_path}/{pattern}")) == KEYS
            assert keys_of(webdataset.stream_shards(f"{tmp_path}/{pattern}")) == KEYS
        with pytest.raises(FileNotFoundError):
            webdataset.parse_shards(f"{tmp_path}/other-*.tar")

    def test_2_shuffle_shards(self, shards):
        def order(**options):
            return keys_of(webdataset.stream_shards(shards, shuffle=True, **options))

        assert {tuple(sorted(order(seed=seed))) for seed in range(8)} == {tuple(KEYS)}
        assert len({tuple(order(seed=seed)) for seed in range(8)}) > 1
        assert len({tuple(order(seed=1, epoch=epoch)) for epoch in range(8)}) > 1
        assert order(seed=3) == order(seed=3) == keys_of(webdataset.parse_shards(shards, shuffle=True, seed=3))

    @pytest.mark.parametrize("taken", range(13))
    def test_3_resume_support(self, shards, taken):
        with webdataset.stream_shards(shards, shuffle=True, seed=5) as samples:
            first = keys_of(itertools.islice(samples, taken))
            position = json.loads(json.dumps(samples.position))
        rest = keys_of(webdataset.stream_shards(shards, shuffle=True, seed=5, resume_from=position))
        assert first + rest == keys_of(webdataset.stream_shards(shards, shuffle=True, seed=5))

    def test_3_resume_of_another_stream_is_refused(self, shards):
        with webdataset.stream_shards(shards) as samples:
            next(samples)
            position = samples.position
        with pytest.raises(ValueError):
            list(webdataset.stream_shards(shards[:2], resume_from=position))

    def test_4_write_support(self, tmp_path, leaky_peer):
        import webdataset as wds

        samples = [
            {"__key__": f"{n:03d}", "jpg": b"\xff\xd8", "txt": f"caption {n}", "json": {"n": n}} for n in range(9)
        ]
        paths = webdataset.write(f"{tmp_path}/out-%06d.tar", samples, max_samples=4)
        assert paths == [f"{tmp_path}/out-{number:06d}.tar" for number in range(3)]
        assert webdataset.parse_shards(paths) == samples
        assert [sample["txt"].decode() for sample in wds.WebDataset(paths, shardshuffle=False)] == [
            f"caption {n}" for n in range(9)
        ]
        assert webdataset.write(tmp_path / "all" / "all.tar.gz", samples) == [str(tmp_path / "all" / "all.tar.gz")]
        assert webdataset.parse(tmp_path / "all" / "all.tar.gz") == samples
        with pytest.raises(FileExistsError):
            webdataset.write(tmp_path / "all" / "all.tar.gz", samples)

    def test_5_remote_archives(self, read, http):
        http.objects["/data/a.tar"] = make_tar(numbered(0, 3))
        http.objects["/data/a.tar.gz"] = gzip.compress(make_tar(numbered(0, 3)))
        assert keys_of(read(f"{http.url}/data/a.tar")) == KEYS[:3]
        assert keys_of(read(f"{http.url}/data/a.tar.gz")) == KEYS[:3]
        with pytest.raises(FileNotFoundError):
            read(f"{http.url}/data/b.tar")

    def test_5_remote_shard_patterns(self, http):
        for n in range(4):
            http.objects[f"/data-{n:05d}.tar"] = make_tar(numbered(3 * n, 3 * n + 3))
        assert keys_of(webdataset.stream_shards(f"{http.url}/data-{{00000..00003}}.tar", workers=2)) == KEYS

    def test_6_parallel_extraction(self, shards):
        for workers in (2, 4, 9):
            assert keys_of(webdataset.parse_shards(shards, workers=workers)) == KEYS
            assert keys_of(webdataset.stream_shards(shards, workers=workers)) == KEYS
            with webdataset.stream_shards(shards, workers=workers, shuffle=True, seed=5) as samples:
                assert keys_of(samples) == keys_of(webdataset.stream_shards(shards, shuffle=True, seed=5))

    def test_shuffle_buffers_batching_and_decoders(self, shards, tmp_path):
        """What the notes on parity leave for later."""

        def batches(seed):
            samples = shoal.DataLoader(lambda: webdataset.stream_shards(shards), batch_size=None)
            return [batch["txt"] for batch in samples.shuffle(5, seed=seed).batch(5)]

        assert [len(batch) for batch in batches(1)] == [5, 5, 2]
        assert sorted(int(text) for batch in batches(1) for text in batch) == list(range(12))
        assert batches(1) == batches(1) != batches(2)
        path = write_tar(tmp_path / "a.tar", [("a.ref.msgpack", msgpack.packb({"x": 1})), ("a.raw", b"ab")])
        assert webdataset.parse(path, decode={"msgpack": True, "raw": bytes.hex}) == [
            {"__key__": "a", "ref.msgpack": {"x": 1}, "raw": "6162"}
        ]


# --------------------------------------------------------------------------------------------------------- 002: atdata


# Define a Sample Type


@shoal.packable
class ImageSample:
    image: NDArray
    label: str
    confidence: float


@pytest.fixture(scope="module")
def samples():
    return [
        ImageSample(
            image=np.random.rand(224, 224, 3).astype(np.float32),  # noqa: NPY002 - as the document has it
            label="cat",
            confidence=0.95,
        )
        for _ in range(100)
    ]


def test_seed_002(tmp_path, monkeypatch, leaky_peer, capsys, samples):
    monkeypatch.chdir(tmp_path)

    # Create and Write Samples
    import webdataset as wds

    with wds.writer.TarWriter("data-000000.tar") as sink:
        for i, sample in enumerate(samples):
            sink.write({**sample.as_wds, "__key__": f"sample_{i:06d}"})

    # Load and Iterate
    dataset = shoal.Dataset[ImageSample]("data-000000.tar")

    # Iterate with batching
    sizes = []
    for batch in dataset.shuffled(batch_size=32):
        images = batch.image  # numpy array (32, 224, 224, 3)
        labels = batch.label  # list of 32 strings
        confs = batch.confidence  # list of 32 floats
        sizes.append(len(batch))
        assert isinstance(images, np.ndarray)
        assert (images.shape, images.dtype) == ((len(batch), 224, 224, 3), np.float32)
        assert labels == ["cat"] * len(batch)
        assert confs == [0.95] * len(batch)
    assert sizes == [32, 32, 32, 4]

    # Use Lenses for Type Transformations
    @shoal.packable
    class SimplifiedSample:
        label: str

    @shoal.lens
    def simplify(src: ImageSample) -> SimplifiedSample:
        return SimplifiedSample(label=src.label)

    # View dataset through a different type
    simple_ds = dataset.as_type(SimplifiedSample)
    for batch in simple_ds.ordered(batch_size=16):
        print(batch.label)
    assert capsys.readouterr().out == f"{['cat'] * 16}\n" * 6 + f"{['cat'] * 4}\n"

    # HuggingFace-Style Loading
    monkeypatch.chdir(_folder_of_shards(tmp_path, samples[:2]))

    # Load from local path
    ds = shoal.load_dataset("path/to/data-{000000..000009}.tar", split="train")
    assert len(ds) == 20

    # Load with split detection
    ds_dict = shoal.load_dataset("path/to/data/")
    train_ds = ds_dict["train"]
    test_ds = ds_dict["test"]
    assert (len(train_ds), len(test_ds)) == (2, 2)


def _folder_of_shards(root, samples):
    for number in range(10):
        shoal.write_samples(samples, root / "path" / "to" / f"data-{number:06d}.tar", append=True)
    for split in ("train", "test"):
        shoal.write_samples(samples, root / "path" / "to" / "data" / f"{split}-000000.tar")
    return root


def test_seed_002_storage_and_federation(redis_url, s3_endpoint, pds, plc, monkeypatch, capsys, samples):
    monkeypatch.setenv("REDIS_URL", redis_url)
    pds.account("seed002.test")

    # Local Storage with Redis + S3
    from shoal.local import LocalIndex, Repo

    # Set up local index
    index = LocalIndex()  # Connects to Redis

    # Create repo with S3 storage
    repo = Repo(
        s3_credentials={
            "AWS_ENDPOINT": s3_endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        },
        bucket="my-bucket",
        index=index,
    )

    # Insert dataset
    entry = repo.insert(samples, name="my-dataset")
    print(f"Stored at: {entry.data_urls}")
    assert capsys.readouterr().out == f"Stored at: {entry.data_urls}\n"
    assert all(url.startswith("s3://my-bucket/") for url in entry.data_urls)
    assert all(shoal.store.exists(url) for url in entry.data_urls)
    assert np.array_equal(entry.open()[99].image, samples[99].image)

    import redis

    with redis.Redis.from_url(redis_url) as server:
        assert server.dbsize() > 0  # and it is Redis that has the index

    # Publish to ATProto Federation
    from shoal.atmosphere import AtmosphereClient
    from shoal.promote import promote_to_atmosphere

    # Authenticate
    client = AtmosphereClient(pds.url, plc, allow_private=True)
    client.login("seed002.test", PASSWORD)

    # Promote local dataset to federation
    entry = index.get_dataset("my-dataset")
    at_uri = promote_to_atmosphere(entry, index, client)
    print(f"Published at: {at_uri}")
    assert capsys.readouterr().out == f"Published at: {at_uri}\n"
    assert at_uri in [record["uri"] for record in pds.records_of(client.did)]  # as the server itself lists it

    # Discover it as somebody without an account, and read what was published.
    stranger = AtmosphereClient(pds.url, plc, allow_private=True)
    assert [found.name for found in stranger.list_datasets("seed002.test")] == ["my-dataset"]
    shoal.atmosphere.set_default_client(stranger)
    published = shoal.load_dataset("@seed002.test/my-dataset", split="train")
    assert len(published) == 100
    assert np.array_equal(published[42].image, samples[42].image)
    assert (published[42].label, published[42].confidence) == ("cat", 0.95)
    with pytest.raises(PermissionError):
        promote_to_atmosphere(entry, index, stranger)

    for each in (client, stranger, index):
        each.close()


class TestSeed002Promises:
    """What the first paragraphs say, for each of their six points."""

    def test_typed_samples_with_automatic_msgpack_serialization(self, samples):
        stored = samples[0].as_wds
        assert set(stored) == {"__key__", "msgpack"}
        plain = msgpack.unpackb(stored["msgpack"])
        assert (plain["label"], plain["confidence"]) == ("cat", 0.95)
        assert samples[0].packed == stored["msgpack"]
        assert ImageSample.from_bytes(samples[0].packed) == samples[0]
        assert ImageSample.from_data({"image": samples[0].image, "label": "cat", "confidence": 0.95}) == samples[0]
        with pytest.raises(ValueError):
            ImageSample.from_bytes(b"\xc1")

    @pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool", "complex64", "<U3"])
    def test_ndarray_handling(self, dtype):
        array = np.arange(12).reshape(3, 4).astype(dtype)
        image = ImageSample.from_bytes(ImageSample(array, "cat", 0.5).packed).image
        assert (image.dtype, image.shape) == (array.dtype, array.shape)
        assert np.array_equal(image, array)

    def test_lens_transformations(self, tmp_path):
        @shoal.packable
        class Named:
            name: str

        @shoal.lens
        def named(src: ImageSample) -> Named:
            return Named(name=src.label)

        @named.putter
        def put_name(view: Named, src: ImageSample) -> ImageSample:
            return ImageSample(src.image, view.name, src.confidence)

        sample = ImageSample(np.arange(3), "cat", 0.5)
        assert named(sample) == named.get(sample) == Named("cat")
        assert named.put(Named("dog"), sample) == ImageSample(np.arange(3), "dog", 0.5)
        assert shoal.check_laws(named, [sample], [Named("dog")]).ok
        dataset = shoal.write_samples([sample, named.put(Named("dog"), sample)], tmp_path / "a.tar")
        assert list(dataset.as_type(Named)) == [Named("cat"), Named("dog")]

    def test_a_lens_that_nobody_wrote_is_an_error(self, tmp_path):
        @shoal.packable
        class Unlike:
            volume: int

        dataset = shoal.write_samples([ImageSample(np.arange(3), "cat", 0.5)], tmp_path / "a.tar")
        with pytest.raises(LookupError):
            list(dataset.as_type(Unlike))

    def test_batch_aggregation_with_automatic_numpy_stacking(self, tmp_path):
        dataset = shoal.write_samples([ImageSample(np.full(3, n), f"{n}", n / 2) for n in range(5)], tmp_path / "a.tar")
        first, last = dataset.ordered(batch_size=3)
        assert np.array_equal(first.image, [[0] * 3, [1] * 3, [2] * 3])
        assert (last.label, last.confidence) == (["3", "4"], [1.5, 2.0])
        assert [sample.label for sample in first.samples] == ["0", "1", "2"]

    def test_webdataset_integration(self, tmp_path, leaky_peer):
        import webdataset as wds

        shoal.write_samples([ImageSample(np.full(3, n), f"{n}", 0.5) for n in range(5)], tmp_path / "a.tar")
        theirs = wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False)
        assert [ImageSample.from_bytes(sample["msgpack"]).label for sample in theirs] == ["0", "1", "2", "3", "4"]

    def test_atproto_federation_is_an_extra(self):
        from importlib.metadata import metadata

        assert "atmosphere" in metadata("shoal").get_all("Provides-Extra")

    def test_load_dataset(self, tmp_path, samples):
        _folder_of_shards(tmp_path, samples[:2])
        typed = shoal.load_dataset(f"{tmp_path}/path/to/data-*.tar", split="train", sample_type=ImageSample)
        assert (len(typed), typed[19]) == (20, samples[1])
        splits = shoal.load_dataset(tmp_path / "path" / "to" / "data")
        assert isinstance(splits, shoal.DatasetDict)
        assert sorted(splits) == ["test", "train"]
        with pytest.raises(KeyError):
            shoal.load_dataset(tmp_path / "path" / "to" / "data", split="validation")
        with pytest.raises(FileNotFoundError):
            shoal.load_dataset(tmp_path / "nothing", split="train")


# ----------------------------------------------------------------------------------------------------------- 003: PLAID


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    """A dataset that PLAID saved with the backend; every third sample has no pressure. Not to be changed."""
    folder = tmp_path_factory.mktemp("seed") / "flow"
    return physics.saved(folder, pb_defs={"problem": physics.problem()})


@pytest.fixture
def copied(flow, tmp_path):
    """The same dataset, for tests that damage it: its folder, and the one tar of the first sample."""
    folder = shutil.copytree(flow, tmp_path / "copied")
    return folder, folder / "data" / "train" / "shard-000000.tar"


# [Overview], [Types], [Files], [Dependencies]


def test_plaid_types(leaky_peer):
    # In src/plaid/storage/webdataset/reader.py
    from pathlib import Path  # noqa: F401
    from typing import Any, Iterable, Iterator, Optional, Union  # noqa: F401, UP035

    import webdataset as wds

    # WebDataset pipeline type (returned by wds.WebDataset)
    WebDatasetPipeline = wds.WebDataset  # noqa: N806

    # Sample dictionary type for WebDataset
    WebDatasetSample = dict[str, Any]  # noqa: N806  # Keys: feature paths, Values: numpy arrays or None

    assert reader.WebDatasetPipeline is shoal.plaid.WebDatasetPipeline is WebDatasetPipeline
    assert reader.WebDatasetSample == shoal.plaid.WebDatasetSample == WebDatasetSample


def test_plaid_exports():
    exports = {
        reader: "init_datasetdict_from_disk download_datasetdict_from_hub init_datasetdict_streaming_from_hub",
        writer: "generate_datasetdict_to_disk push_local_datasetdict_to_hub configure_dataset_card",
        bridge: "to_var_sample_dict sample_to_var_sample_dict",
    }
    for module, names in exports.items():
        for name in names.split():
            assert name in shoal.plaid.__all__
            assert getattr(shoal.plaid, name) is getattr(module, name)
    for name in ("WebDatasetDict", "WebDatasetWrapper"):
        assert getattr(shoal.plaid, name) is getattr(reader, name)


def test_plaid_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "webdataset>=0.2.0" in project["optional-dependencies"]["plaid"]


def test_plaid_documentation():
    assert (ROOT / "docs" / "how-to" / "webdataset_backend.md").is_file()
    tutorial = (ROOT / "docs" / "tutorial" / "storage.md").read_text("utf-8")
    assert 'all_backends = ["hf_datasets", "cgns", "zarr", "webdataset"]' in tutorial


def test_plaid_samples_are_members_with_a_shared_basename(flow):
    (tar_path,) = reader.init_datasetdict_from_disk(flow).split_tar_paths["train"][:1]
    with tarfile.open(tar_path) as tar:
        names = tar.getnames()
    assert names[0] == "sample_000000000.json"
    assert {name.partition(".")[0] for name in names} == {"sample_000000000"}
    assert {name.rpartition(".")[2] for name in names[1:]} == {"npy"}
    assert sorted(path.name for path in (flow / "data").iterdir()) == ["test", "train"]


# [Functions], [Classes]: what they take. What they return is in the tests below.

PLAN = {
    reader: """
def init_datasetdict_from_disk(path: Union[str, Path]) -> dict[str, WebDatasetDict]: ...
def download_datasetdict_from_hub(
    repo_id: str, local_dir: Union[str, Path], split_ids: Optional[dict[str, list[int]]] = None,
    features: Optional[list[str]] = None, overwrite: bool = False
) -> None: ...
def init_datasetdict_streaming_from_hub(
    repo_id: str, split_ids: Optional[dict[str, list[int]]] = None, features: Optional[list[str]] = None
) -> dict[str, wds.WebDataset]: ...
def _create_webdataset_pipeline(tar_path: str, features: Optional[list[str]] = None) -> wds.WebDataset: ...
""",
    writer: """
def generate_datasetdict_to_disk(
    output_folder: Union[str, Path], generators: dict[str, Callable], variable_schema: dict,
    gen_kwargs: Optional[dict] = None, num_proc: int = 1, verbose: bool = False
) -> None: ...
def push_local_datasetdict_to_hub(repo_id: str, local_dir: Union[str, Path], num_workers: int = 1) -> None: ...
def configure_dataset_card(
    repo_id: str, infos: dict, local_dir: Optional[Union[str, Path]] = None, viewer: Optional[bool] = None,
    pretty_name: Optional[str] = None, dataset_long_description: Optional[str] = None,
    illustration_urls: Optional[list[str]] = None, arxiv_paper_urls: Optional[list[str]] = None
) -> None: ...
def _write_sample_to_tar(
    tar_writer: wds.TarWriter, sample: Sample, var_features_keys: list[str], sample_idx: int
) -> None: ...
""",
    bridge: """
def to_var_sample_dict(wds_sample: dict[str, Any], idx: int, features: Optional[list[str]]) -> dict[str, Any]: ...
def sample_to_var_sample_dict(wds_sample: dict[str, Any]) -> dict[str, Any]: ...
def _decode_sample(sample: dict[str, bytes]) -> dict[str, Any]: ...
""",
    reader.WebDatasetDict: """
def __init__(self, path: Union[str, Path], split_tar_paths: dict[str, Path], **kwargs): ...
def __getitem__(self, split: str) -> wds.WebDataset: ...
def __len__(self) -> int: ...
def __iter__(self) -> Iterator[tuple[str, wds.WebDataset]]: ...
def __getattr__(self, name: str) -> Any: ...
def __setattr__(self, name: str, value: Any) -> None: ...
def __repr__(self) -> str: ...
""",
    reader.WebDatasetWrapper: """
def __init__(self, tar_path: Union[str, Path], cache: bool = False): ...
def __getitem__(self, idx: int) -> dict[str, Any]: ...
def __len__(self) -> int: ...
def __iter__(self) -> Iterator[dict[str, Any]]: ...
""",
}
FUNCTIONS = [(owner, function) for owner, text in PLAN.items() for function in ast.parse(text).body]
REQUIRED = inspect.Parameter.empty


@pytest.mark.parametrize("owner,function", FUNCTIONS, ids=[function.name for _, function in FUNCTIONS])
def test_plaid_signature(owner, function):
    names = [each.arg for each in function.args.args]
    defaults = [ast.literal_eval(each) for each in function.args.defaults]
    promised = dict(zip(names, [REQUIRED] * (len(names) - len(defaults)) + defaults, strict=True))
    if function.name == "to_var_sample_dict":
        promised["features"] = None  # may be left out
    signature = inspect.signature(getattr(owner, function.name))
    found = {name: each.default for name, each in signature.parameters.items()}
    assert list(found.items())[: len(names)] == list(promised.items())
    further = list(signature.parameters.values())[len(names) :]
    if function.args.kwarg is not None:
        assert further.pop(0).kind is inspect.Parameter.VAR_KEYWORD
    assert all(each.default is not REQUIRED for each in further)  # what the plan does not have need not be given


# What the functions do


def test_plaid_init_datasetdict_from_disk(flow):
    for path in (flow, str(flow)):
        found = reader.init_datasetdict_from_disk(path)
        assert isinstance(found, reader.WebDatasetDict)
        assert {name: len(split) for name, split in found.items()} == {"train": 5, "test": 3}


def test_plaid_init_datasetdict_from_disk_scans_for_tars(flow, tmp_path):
    shutil.copytree(flow / "data", tmp_path / "data")  # no manifest, no index
    found, expected = map(reader.init_datasetdict_from_disk, (tmp_path, flow))
    for name in expected:
        for ours, theirs in zip(found[name], expected[name], strict=True):
            physics.same_values(ours, theirs)


def test_plaid_create_webdataset_pipeline(flow, leaky_peer):
    split = reader.init_datasetdict_from_disk(flow)["test"]
    tars = reader.init_datasetdict_from_disk(flow).split_tar_paths["test"]
    for number, tar_path in enumerate(tars):
        (sample,) = reader._create_webdataset_pipeline(str(tar_path))
        assert sample.pop("__key__") == f"sample_{number:09d}"
        physics.same_values(bridge.sample_to_var_sample_dict(sample), split[number])
        (sample,) = reader._create_webdataset_pipeline(str(tar_path), [GLOBAL])
        assert {name for name in sample if not name.startswith("__")} == {GLOBAL}
        assert sample[GLOBAL] == split[number][GLOBAL]


def test_plaid_write_sample_to_tar_and_decode_sample(tmp_path, leaky_peer):
    import webdataset as wds

    keys = [GLOBAL, FIELD, SPEED]
    with wds.TarWriter(str(tmp_path / "split.tar")) as tar_writer:
        for number in range(4):
            assert writer._write_sample_to_tar(tar_writer, physics.make_sample(number), keys, number) is None
    split = reader.WebDatasetWrapper(tmp_path / "split.tar")
    pipeline = wds.WebDataset(str(tmp_path / "split.tar"), shardshuffle=False)
    assert split.ids.tolist() == [0, 1, 2, 3]
    for number, raw in enumerate(pipeline):
        flat = build_sample_dict(physics.make_sample(number))[0]
        expected = {key: flat.get(key) for key in keys}
        assert (expected[FIELD] is None) == (number % 3 == 0)
        physics.same_values(split[number], expected)
        physics.same_values(bridge._decode_sample(raw), expected)
        physics.same_values(bridge.sample_to_var_sample_dict(raw), expected)


def test_plaid_bridge(flow):
    split = reader.init_datasetdict_from_disk(flow)["train"]
    physics.same_values(bridge.sample_to_var_sample_dict(split[1]), split[1])
    for given in (split, split[1]):
        physics.same_values(bridge.to_var_sample_dict(given, 1, None), split[1])
        physics.same_values(bridge.to_var_sample_dict(given, 1, [GLOBAL]), {GLOBAL: split[1][GLOBAL]})


@pytest.mark.parametrize("num_proc", [1, 2])
def test_plaid_generate_datasetdict_to_disk(tmp_path, num_proc):
    generators = dict.fromkeys(IDS, physics.generated)
    gen_kwargs = {split: {"shards_ids": [ids[:2], ids[2:]]} for split, ids in IDS.items()}
    schema = preprocess(generators, gen_kwargs, verbose=False)[1]
    done = writer.generate_datasetdict_to_disk(
        tmp_path, generators, schema, gen_kwargs=gen_kwargs, num_proc=num_proc, verbose=False
    )
    assert done is None
    found = reader.init_datasetdict_from_disk(tmp_path)
    for name, ids in IDS.items():
        for number, sample in zip(ids, found[name], strict=True):
            flat = build_sample_dict(physics.make_sample(number))[0]
            physics.same_values(sample, {path: flat.get(path) for path in schema})


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_plaid_hub(flow, hub, tmp_path):
    repo_id = "tester/flow"
    assert writer.push_local_datasetdict_to_hub(repo_id, flow, num_workers=1) is None
    assert (
        writer.configure_dataset_card(
            repo_id,
            {"license": "cc-by-4.0", "num_samples": {"train": 5, "test": 3}},
            flow,
            viewer=False,
            pretty_name="Flow",
            dataset_long_description="A long description.",
            illustration_urls=["https://example.org/picture.png"],
            arxiv_paper_urls=["https://arxiv.org/abs/0000.00000"],
        )
        is None
    )
    card = hub.repos["dataset", repo_id].files()["README.md"].decode()
    for text in ("cc-by-4.0", "Flow", "A long description.", "picture.png", "0000.00000", "```python", "### Format"):
        assert text in card

    local = reader.init_datasetdict_from_disk(flow)
    streamed = reader.init_datasetdict_streaming_from_hub(repo_id)
    assert streamed.keys() == local.keys()
    for name, split in local.items():
        for ours, theirs in zip(streamed[name], split, strict=True):
            physics.same_values(ours, theirs)
    some = reader.init_datasetdict_streaming_from_hub(repo_id, split_ids={"train": [3, 1]}, features=[SPEED])
    assert list(some) == ["train"]
    assert [sample[SPEED].tolist() for sample in some["train"]] == [local["train"][n][SPEED].tolist() for n in (3, 1)]
    assert all(GLOBAL not in sample for sample in some["train"])

    reader.download_datasetdict_from_hub(repo_id, tmp_path / "all")
    reader.download_datasetdict_from_hub(repo_id, str(tmp_path / "some"), {"train": [3, 1]}, [SPEED])
    for name, split in reader.init_datasetdict_from_disk(tmp_path / "all").items():
        for ours, theirs in zip(split, local[name], strict=True):
            physics.same_values(ours, theirs)
    (part,) = reader.init_datasetdict_from_disk(tmp_path / "some").values()
    assert part.ids.tolist() == [3, 1]
    np.testing.assert_array_equal(part[1][SPEED], local["train"][1][SPEED])
    with pytest.raises(FileExistsError):
        reader.download_datasetdict_from_hub(repo_id, tmp_path / "all")
    reader.download_datasetdict_from_hub(repo_id, tmp_path / "all", split_ids={"test": [0]}, overwrite=True)
    assert list(reader.init_datasetdict_from_disk(tmp_path / "all")) == ["test"]


# What the classes do


def test_plaid_webdataset_dict(flow):
    tars = reader.init_datasetdict_from_disk(flow).split_tar_paths
    found = reader.WebDatasetDict(flow, {"one": tars["train"][0], "test": tars["test"]}, owner="us")
    assert found.path == flow
    assert {name: list(paths) for name, paths in found.split_tar_paths.items()} == {
        "one": [tars["train"][0]],
        "test": tars["test"],
    }
    assert (len(found), [name for name, _ in found.items()]) == (2, ["one", "test"])
    assert (len(found["one"]), len(found["test"])) == (1, 3)
    assert (found._extra_fields, found.owner) == ({"owner": "us"}, "us")
    found.licence = "cc"
    assert (found.licence, found._extra_fields) == ("cc", {"owner": "us", "licence": "cc"})
    with pytest.raises(AttributeError):
        _ = found.nothing
    assert "one" in repr(found)


def test_plaid_webdataset_wrapper(flow, tmp_path, leaky_peer):
    import webdataset as wds

    (tar_path,) = reader.init_datasetdict_from_disk(flow).split_tar_paths["test"][1:2]
    shutil.copy(tar_path, tmp_path / "test.tar")
    split, cached = (reader.WebDatasetWrapper(tmp_path / "test.tar", cache=cache) for cache in (False, True))
    assert (split.path, split._cache) == (tmp_path / "test.tar", None)
    assert isinstance(split.wds_pipeline, wds.WebDataset)
    assert len(list(split.wds_pipeline)) == 1
    assert isinstance(split.ids, np.ndarray)
    assert split.ids.tolist() == [1]
    assert len(split) == len(cached) == len(cached._cache) == 1
    (sample,) = split
    physics.same_values(sample, split[1])
    (tmp_path / "test.tar").unlink()
    physics.same_values(cached[1], sample)
    with pytest.raises(IndexError):
        cached[0]


# [Testing]: the tests that the plan names

TESTS = """
class TestWebDataset:
    def test_write_and_read_local(self, tmp_path, generator_split, infos, problem_definition)
    def test_sample_iteration(self, tmp_path, generator_split, infos, problem_definition)
    def test_converter_operations(self, tmp_path, generator_split, infos, problem_definition)
    def test_feature_filtering(self, tmp_path, generator_split, infos, problem_definition)
    def test_webdataset_dict_class(self, tmp_path, generator_split, infos, problem_definition)
    def test_parallel_generation(self, tmp_path, generator_split_with_kwargs, gen_kwargs, infos, problem_definition)
"""
COMMANDS = """
pytest tests/storage/test_storage.py::Test_Storage::test_webdataset -v
pytest tests/storage/test_webdataset.py -v
pytest tests/storage/test_storage.py::Test_Storage::test_registry -v
"""


def test_plaid_tests_are_there():
    module = import_module("tests.storage.test_webdataset")
    for name, parameters in re.findall(r"def (\w+)\((.*)\)", TESTS):
        found = inspect.signature(getattr(module.TestWebDataset, name))
        assert ", ".join(found.parameters) == parameters
    method = import_module("tests.storage.test_storage").Test_Storage.test_webdataset
    promised = ["self", "tmp_path", "generator_split", "infos", "problem_definition"]
    assert list(inspect.signature(method).parameters) == promised


def test_plaid_commands_name_tests():
    for path, *names in (line.split()[1].split("::") for line in COMMANDS.strip().splitlines()):
        found = import_module(path.removesuffix(".py").replace("/", "."))
        for name in names:
            found = getattr(found, name)


def test_plaid_registry():
    backends = registry.available_backends()
    assert "webdataset" in backends
    webdataset_module = registry.get_backend("webdataset")
    assert webdataset_module is not None


# Edge cases


def arrays(folder, values, name="Global/x"):
    """Write a split of one feature with these values, and read it back."""
    samples = [physics.bare_sample() for _ in values]
    for sample, value in zip(samples, values, strict=True):
        if value is not None:
            sample.add_global("x", np.zeros(1))
            node_of(sample.data[0.0], "x")[1] = value
    writer.generate_datasetdict_to_disk(folder, {"train": lambda: iter(samples)}, {name: None, f"{name}_times": None})
    return reader.init_datasetdict_from_disk(folder)["train"]


def node_of(node, name):
    """The node of a CGNS tree with this name."""
    if node[0] == name:
        return node
    return next((found for child in node[2] if (found := node_of(child, name)) is not None), None)


@pytest.mark.parametrize("num_proc", [1, 2])
def test_plaid_empty_datasets(tmp_path, num_proc):
    kwargs = {"train": {"shards_ids": []}}
    writer.generate_datasetdict_to_disk(tmp_path, {"train": physics.generated}, {GLOBAL: None}, kwargs, num_proc)
    found = reader.init_datasetdict_from_disk(tmp_path)
    assert (list(found), len(found["train"]), list(found["train"]), found["train"].ids.tolist()) == (
        ["train"],
        0,
        [],
        [],
    )
    with pytest.raises(IndexError):
        found["train"][0]
    assert (len(reader.WebDatasetDict(tmp_path, {})), dict(reader.WebDatasetDict(tmp_path, {}))) == (0, {})


def test_plaid_none_values_in_features(flow, tmp_path):
    split = arrays(tmp_path / "d", [np.ones(2), None, np.zeros(3)])
    assert [None if each["Global/x"] is None else each["Global/x"].tolist() for each in split] == [
        [1.0, 1.0],
        None,
        [0.0, 0.0, 0.0],
    ]
    assert split[1] == {"Global/x": None, "Global/x_times": None}
    datasets, converters = init_from_disk(flow)
    assert datasets["train"][3][FIELD] is None
    assert converters["train"].to_plaid(datasets["train"], 3).get_field_names() == ["speed"]
    assert "pressure" in converters["train"].to_plaid(datasets["train"], 2).get_field_names()


def test_plaid_large_arrays(tmp_path):
    values = [np.random.default_rng(number).random((3, 1_000_000)) for number in range(2)]  # 24 MB each
    for found, value in zip(arrays(tmp_path, values), values, strict=True):
        assert (found["Global/x"].dtype, found["Global/x"].shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(found["Global/x"], value)


def test_plaid_unicode_strings(tmp_path):
    texts = ["Grüße", "数値流体力学", "🌊 Δp = 3·v²"]
    found = arrays(tmp_path / "d", [np.array([text]) for text in texts])
    assert [sample["Global/x"].tolist() for sample in found] == [[text] for text in texts]
    writer.generate_datasetdict_to_disk(
        tmp_path / "é", {"прогон": lambda: iter([physics.make_sample(1)])}, {GLOBAL: None, "Global/数": None}
    )
    ((name, split),) = reader.init_datasetdict_from_disk(tmp_path / "é").items()
    assert name == "прогон"
    assert split[0] == {GLOBAL: np.array([1 / 8], np.float32), "Global/数": None}


def test_plaid_missing_features(tmp_path):
    writer.generate_datasetdict_to_disk(
        tmp_path, {"train": lambda: physics.generated([[0, 1]])}, {FIELD: None, "Global/nowhere": None}
    )
    first, second = reader.init_datasetdict_from_disk(tmp_path)["train"]
    assert first == {FIELD: None, "Global/nowhere": None}
    assert (second[FIELD].shape, second["Global/nowhere"]) == ((physics.NODES,), None)


# Error handling


@pytest.mark.parametrize("data", [b"no tar at all" * 100, b"short"])
def test_plaid_invalid_tar_files(tmp_path, data):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.tar").write_bytes(data)
    split = reader.init_datasetdict_from_disk(tmp_path)["train"]
    for read in (lambda: split[0], lambda: list(split), lambda: len(split)):
        with pytest.raises(ValueError):
            read()


def test_plaid_missing_split_files(copied, tmp_path):
    folder, tar_path = copied
    found = reader.init_datasetdict_from_disk(folder)
    with pytest.raises(KeyError):
        found["validation"]
    tar_path.unlink()
    with pytest.raises(FileNotFoundError):
        found["train"][0]
    with pytest.raises(FileNotFoundError):
        list(reader.WebDatasetDict(tmp_path, {"train": tmp_path / "train.tar"})["train"])
    with pytest.raises(FileNotFoundError):
        reader.init_datasetdict_from_disk(tmp_path / "nowhere")


def test_plaid_corrupted_data(copied):
    folder, tar_path = copied
    data = bytearray(tar_path.read_bytes())
    speed = reader.init_datasetdict_from_disk(folder)["train"][0][SPEED]
    data[data.index(speed.tobytes()) + 5] ^= 1
    tar_path.write_bytes(data)
    split = reader.init_datasetdict_from_disk(folder)["train"]
    for read in (lambda: split[0], lambda: list(split), lambda: bridge.to_var_sample_dict(split, 0, [SPEED])):
        with pytest.raises(ValueError):
            read()
    assert bridge.to_var_sample_dict(split, 0, [GLOBAL])[GLOBAL] == 0  # nothing else is lost
    assert split[1][GLOBAL] == np.float32(1 / 8)
    tar_path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError):
        reader.init_datasetdict_from_disk(folder)["train"][0]
    with pytest.raises(ValueError):
        bridge._decode_sample({"__key__": "sample_000000000", "x.npy": b"no array"})


def test_plaid_feature_key_mismatches(flow):
    datasets, converters = init_from_disk(flow)
    for wrong in ("Global/mach", "Base_2_2/Zone/VertexFields/nothing"):
        for given in (datasets["train"], datasets["train"][1]):
            with pytest.raises(KeyError):
                bridge.to_var_sample_dict(given, 1, [wrong])
        with pytest.raises(KeyError):
            converters["train"].to_dict(datasets["train"], 1, features=[wrong])


# Integration


def test_plaid_integration(flow):
    assert plaid.storage.load_infos_from_disk(flow).storage_backend == "webdataset"
    datasets, converters = init_from_disk(flow)
    problem = plaid.storage.load_problem_definitions_from_disk(flow)["problem"]
    assert problem == physics.problem()
    for name, ids in IDS.items():
        dataset, converter = datasets[name], converters[name]
        for place, number in enumerate(ids):
            expected = build_sample_dict(physics.make_sample(number))[0]
            for sample in (converter.to_plaid(dataset, place), converter.sample_to_plaid(dataset[place])):
                physics.same_values(build_sample_dict(sample)[0], expected)
                for path in [*problem.input_features, *problem.output_features]:
                    np.testing.assert_array_equal(sample.get_feature_by_path(path), expected[path])
            for found in (converter.to_dict(dataset, place), converter.sample_to_dict(dataset[place])):
                np.testing.assert_array_equal(found[0.0][SPEED], expected[SPEED])


# ------------------------------------------------------------------------------------------- 004: s3dlio's data loader


def vectors(count):
    return [{"x": np.arange(n, n + 3, dtype=np.float32), "n": n} for n in range(count)]


def npz_objects(url, count):
    """Upload so many NPZ objects with random content; give their arrays."""
    rng = np.random.default_rng(4)
    arrays = rng.random((count, 4, 2), dtype=np.float32)
    for number, array in enumerate(arrays):
        out = io.BytesIO()
        np.savez(out, x=array, n=number)
        shoal.store.put(f"{url}/{number:03d}.npz", out.getvalue())
    return arrays


class TestSeed004Stage1:
    """Dataset, DataLoader, the object types, LoaderOptions."""

    def test_a_dataset_gives_random_and_sequential_access_and_a_loader_batches(self, tmp_path):
        dataset = shoal.write_samples([{"cls": n} for n in range(10)], tmp_path / "a.tar")
        assert isinstance(dataset, shoal.Dataset)
        assert [dataset[n]["cls"] for n in (7, -1, 0)] == [7, 9, 0]
        assert [sample["cls"] for sample in dataset] == list(range(10))
        loader = shoal.DataLoader(dataset, batch_size=4)
        assert [batch["cls"] for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_it_is_an_iterator_as_well(self):
        loader = shoal.DataLoader(range(5), batch_size=2)
        assert [next(loader), next(loader), next(loader)] == [[0, 1], [2, 3], [4]]
        with pytest.raises(StopIteration):
            next(loader)

    def test_len_of_what_reports_a_length(self, tmp_path):
        dataset = shoal.write_samples([{"cls": n} for n in range(10)], tmp_path / "a.tar")
        assert len(dataset) == 10
        assert len(shoal.DataLoader(dataset, batch_size=4)) == 3
        assert len(shoal.DataLoader(dataset, batch_size=4, drop_last=True)) == 2
        with pytest.raises(TypeError):
            len(shoal.DataLoader(iter(range(10)), batch_size=4))

    @pytest.mark.parametrize("count, batch_size", [(0, 3), (1, 3), (3, 3), (10, 3), (10, 1), (10, 99)])
    def test_loader_options(self, count, batch_size):
        options = shoal.LoaderOptions(batch_size=batch_size, drop_last=False)
        groups = [list(range(first, min(first + batch_size, count))) for first in range(0, count, batch_size)]
        assert list(shoal.DataLoader(range(count), options)) == groups
        whole = [group for group in groups if len(group) == batch_size]
        assert list(shoal.DataLoader(range(count), options.with_options(drop_last=True))) == whole
        assert list(shoal.DataLoader(range(count), batch_size=batch_size, drop_last=True)) == whole

    @pytest.mark.parametrize(
        "wrong",
        [
            {"batch_size": 0}, {"drop_last": "yes"}, {"shuffle": 1}, {"seed": -1}, {"seed": 1 << 64},
            {"num_workers": -1}, {"prefetch": -1}, {"auto_tune": "yes"},
        ],
    )  # fmt: skip
    def test_options_that_make_no_sense(self, wrong):
        with pytest.raises(ValueError):
            shoal.LoaderOptions(**wrong)
        with pytest.raises(ValueError):
            shoal.DataLoader(range(3), **wrong)

    @staticmethod
    def check_vectors(dataset):
        assert len(dataset) == 20
        assert np.array_equal(dataset[13]["x"], [13, 14, 15])
        batches = list(shoal.DataLoader(dataset, batch_size=8))
        numbers = [np.asarray(batch["n"]).tolist() for batch in batches]
        assert numbers == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
        assert np.array_equal(batches[2]["x"], [np.arange(n, n + 3) for n in range(16, 20)])

    def test_npz_objects(self, tmp_path):
        paths = shoal.formats.write_format(tmp_path / "each", vectors(20), format="npz")
        assert len(paths) == 20
        self.check_vectors(shoal.dataset.NpzDataset(tmp_path / "each"))
        self.check_vectors(shoal.Dataset(paths))
        rows = shoal.formats.write_format(tmp_path / "all.npz", vectors(20), rows=True)
        self.check_vectors(shoal.dataset.NpzDataset(rows, rows=True))

    @pytest.mark.parametrize(
        "name, ending, kind",
        [
            ("hdf5", "h5", shoal.dataset.Hdf5Dataset),
            ("tfrecord", "tfrecord", shoal.dataset.TFRecordDataset),
            ("parquet", "parquet", shoal.dataset.ParquetDataset),
            ("arrow", "arrow", shoal.dataset.ArrowDataset),
        ],
    )
    def test_objects_of_many_records(self, tmp_path, name, ending, kind):
        paths = shoal.formats.write_format(f"{tmp_path}/part-%03d.{ending}", vectors(20), max_samples=8)
        assert paths == [f"{tmp_path}/part-{number:03d}.{ending}" for number in range(3)]
        self.check_vectors(kind(paths))
        self.check_vectors(shoal.Dataset(f"{tmp_path}/part-*.{ending}"))
        self.check_vectors(shoal.Dataset(tmp_path, format=name))
        with pytest.raises(FileNotFoundError):
            len(kind(tmp_path / f"missing.{ending}"))

    def test_raw_objects(self, tmp_path):
        for number in range(5):
            (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 10)
        dataset = shoal.dataset.RawDataset(tmp_path)
        assert len(dataset) == 5
        (batch,) = shoal.DataLoader(dataset, batch_size=5)
        assert batch["bin"] == [bytes([number]) * 10 for number in range(5)]
        assert [sample["bin"] for sample in shoal.Dataset(tmp_path, format="raw")] == batch["bin"]

    @pytest.mark.parametrize("workers", [0, 4])
    def test_ten_random_npz_objects_of_a_bucket(self, s3, workers):
        arrays = npz_objects(s3, 10)
        loader = shoal.DataLoader(shoal.dataset.NpzDataset(s3), batch_size=4, num_workers=workers)
        batches = list(loader)
        assert len(batches) == len(loader) == 3
        assert np.array_equal(np.concatenate([batch["x"] for batch in batches]), arrays)
        assert [int(n) for batch in batches for n in batch["n"]] == list(range(10))


class TestSeed004Stage2:
    """Samplers, the other options, the combinators, threads."""

    def test_the_sequential_sampler(self):
        sampler = shoal.SequentialSampler(range(5))
        assert (len(sampler), list(sampler), list(sampler)) == (5, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
        assert list(shoal.DataLoader(list("abcde"), batch_size=2, sampler=sampler)) == [["a", "b"], ["c", "d"], ["e"]]

    def test_the_shuffling_sampler(self):
        first, same, other = (list(shoal.ShufflingSampler(100, seed=seed)) for seed in (1, 1, 2))
        assert sorted(first) == list(range(100))
        assert first == same != other
        assert first != list(range(100))
        loader = shoal.DataLoader(range(100), batch_size=10, sampler=shoal.ShufflingSampler(100, seed=1))
        assert [number for batch in loader for number in batch] == first

    @pytest.mark.parametrize("kind", [shoal.SequentialSampler, shoal.ShufflingSampler])
    def test_samplers_are_such_as_pytorch_takes(self, kind):
        import torch

        batches = torch.utils.data.DataLoader(list(range(20)), batch_size=8, sampler=kind(20))
        assert len(batches) == 3
        assert [number for batch in batches for number in batch.tolist()] == list(kind(20))

    def test_shuffle_and_seed_over_ten_thousand_objects(self):
        for number in range(10_000):
            shoal.store.put(f"memory://ten-thousand/{number:05d}.bin", number.to_bytes(2, "little"))
        objects = shoal.dataset.RawDataset("memory://ten-thousand")

        def order(seed, **options):
            loader = shoal.DataLoader(objects, batch_size=100, shuffle=True, seed=seed, **options)
            return [int.from_bytes(content, "little") for batch in loader for content in batch["bin"]]

        first = order(1)
        assert sorted(first) == list(range(10_000))
        assert first == order(1) == order(1, num_workers=0) == order(1, num_workers=4, prefetch=8)
        assert first != order(2)
        assert first != list(range(10_000))

    def test_shuffle_and_seed_over_ten_thousand_samples_of_shards(self, tmp_path):
        samples = ({"__key__": f"{n:05d}", "cls": n} for n in range(10_000))
        dataset = shoal.write_samples(samples, tmp_path / "shards", max_samples=2500)

        def order(seed):
            loader = shoal.DataLoader(dataset, batch_size=500, shuffle=True, seed=seed)
            return [number for batch in loader for number in batch["cls"]]

        first = order(7)
        assert sorted(first) == list(range(10_000))
        assert first == order(7) != order(8)

    @pytest.mark.parametrize("workers", [0, 1, 3])
    def test_num_workers(self, workers):
        threads = set()

        def decode(number):
            threads.add(threading.get_ident())
            return -number

        loader = shoal.DataLoader(range(200), batch_size=5, num_workers=workers).map(lambda batch: decode(batch[0]))
        assert list(loader) == list(range(0, -200, -5))
        assert loader.settings.num_workers == workers
        assert (threading.get_ident() in threads) is (workers == 0)
        assert len(threads) <= max(workers, 1)

    def test_prefetch_overlaps_reading_and_use(self):
        ahead = threading.Event()

        def decode(number):
            if number >= 20:
                ahead.set()
            return number

        with shoal.DataLoader(range(100), batch_size=None, num_workers=1, prefetch=8).map(decode).batch(10) as loader:
            batches = iter(loader)
            assert next(batches) == list(range(10))
            assert ahead.wait(30)  # while the first batch is in use

    def test_without_prefetch_nothing_is_read_before_its_time(self):
        read = []
        loader = shoal.DataLoader(range(100), batch_size=10, num_workers=0, prefetch=0)
        batches = iter(loader.map(lambda batch: read.append(batch) or batch))
        next(batches)
        assert read == [list(range(10))]

    def test_auto_tune_tries_settings_and_changes_no_batch(self):
        slow = threading.Event()
        loader = shoal.DataLoader(range(20_000), batch_size=1, num_workers="auto", prefetch="auto", auto_tune=True)
        loader = loader.map(lambda batch: slow.wait(0.001) or batch)
        settings = set()
        for expected, (number,) in enumerate(loader):
            assert number == expected
            settings.add((loader.stats().workers, loader.stats().prefetch))
            if len(settings) > 1:
                break
        assert len(settings) > 1
        loader.close()

    @pytest.mark.parametrize(
        "fixed", [{"auto_tune": False}, {"auto_tune": True, "num_workers": 1, "prefetch": 3}], ids=["all", "some"]
    )
    def test_what_is_fixed_is_not_tuned(self, fixed):
        loader = shoal.DataLoader(range(5000), batch_size=1, **fixed)
        numbers, settings = [], set()
        for (number,) in loader:
            numbers.append(number)
            settings.add((loader.stats().workers, loader.stats().prefetch))
        assert numbers == list(range(5000))
        assert len(settings) == 1
        assert "num_workers" not in fixed or settings == {(1, 3)}

    @pytest.fixture
    def dataset(self, tmp_path):
        return shoal.write_samples([{"cls": n} for n in range(10)], tmp_path / "a.tar")

    def test_map_filter_and_flat_map_of_a_dataset(self, dataset):
        assert list(dataset.map(lambda sample: sample["cls"] * 2)) == list(range(0, 20, 2))
        assert [sample["cls"] for sample in dataset.filter(lambda sample: sample["cls"] % 3 == 0)] == [0, 3, 6, 9]
        assert list(dataset.flat_map(lambda sample: [sample["cls"]] * (sample["cls"] % 3))) == [
            1,
            2,
            2,
            4,
            5,
            5,
            7,
            8,
            8,
        ]
        assert [sample["cls"] for sample in dataset] == list(range(10))  # they give new datasets

    def test_map_filter_and_flat_map_of_a_loader(self):
        loader = shoal.DataLoader(range(10), batch_size=None)
        assert list(loader.map(lambda n: n * 2)) == list(range(0, 20, 2))
        assert list(loader.filter(lambda n: n % 3 == 0)) == [0, 3, 6, 9]
        assert list(loader.flat_map(lambda n: [n] * (n % 3))) == [1, 2, 2, 4, 5, 5, 7, 8, 8]
        assert list(loader) == list(range(10))

    def test_with_options(self, dataset):
        loader = shoal.DataLoader(dataset)
        assert loader.settings == shoal.LoaderOptions()
        other = loader.with_options(batch_size=3, drop_last=True, shuffle=True, seed=5, num_workers=1, prefetch=2)
        assert [len(batch["cls"]) for batch in other] == [3, 3, 3]
        names = ("batch_size", "drop_last", "shuffle", "seed", "num_workers", "prefetch", "auto_tune")
        assert [getattr(other.settings, name) for name in names] == [3, True, True, 5, 1, 2, True]
        assert loader.settings == shoal.LoaderOptions()
        assert [batch["cls"] for batch in dataset.with_options(batch_size=6)] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
        with pytest.raises((TypeError, ValueError)):
            loader.with_options(batch_sise=3)

    def test_threading_options(self, dataset):
        options = shoal.ThreadingOptions(max_intra_op_parallelism=1, private_threadpool_size=2)
        for loader in (shoal.DataLoader(dataset, batch_size=5).options(options), dataset.batch(5).options(options)):
            assert [batch["cls"] for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
            assert loader.stats().workers == 2
        bounded = shoal.DataLoader(dataset, num_workers=8).options(shoal.ThreadingOptions(max_inter_op_parallelism=1))
        assert [batch["cls"] for batch in bounded] == [list(range(10))]
        assert bounded.stats().workers == 1
        with pytest.raises(ValueError):
            shoal.ThreadingOptions(max_inter_op_parallelism=0)

    def test_options(self):
        loader = shoal.DataLoader(range(10)).options(shoal.LoaderOptions(batch_size=5))
        assert list(loader) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        assert list(loader.options(drop_last=True, batch_size=4)) == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_map_and_prefetch_take_numbers_and_auto(self):
        loader = shoal.DataLoader(range(10), batch_size=None)
        assert loader.map(abs, num_parallel_calls=3).settings.num_workers == 3
        assert loader.map(abs, num_parallel_calls="auto").settings.num_workers == "auto"
        assert loader.prefetch(5).settings.prefetch == 5
        assert loader.prefetch(5).prefetch("auto").settings.prefetch == "auto"
        assert list(loader.shuffle(4, seed=1)) == list(loader.shuffle(4, seed=1)) != list(loader.shuffle(4, seed=2))

    def test_the_one_liner(self, tmp_path):
        def parse_fn(sample):
            return sample["cls"]

        ds = shoal.write_samples(({"cls": n} for n in range(1000)), tmp_path / "a.tar")
        loader = (ds.shuffle(10000)
                    .map(parse_fn, num_parallel_calls="auto")
                    .batch(128, drop_last=True)
                    .prefetch("auto"))  # fmt: skip
        batches = list(loader)
        assert [len(batch) for batch in batches] == [128] * 7
        numbers = [int(number) for batch in batches for number in batch]
        assert len(set(numbers)) == 896
        assert set(numbers) < set(range(1000))
        assert numbers != sorted(numbers)
        assert len(loader) == 7


class TestSeed004Stage3:
    """PyTorch, TensorFlow, the command and the examples."""

    @pytest.fixture
    def dataset(self, tmp_path):
        return shoal.write_samples(
            [{"x.npy": np.full(3, n, np.float32), "cls": n} for n in range(10)], tmp_path / "a.tar"
        )

    def test_torch_iterable_dataset(self, dataset):
        import torch

        from shoal.torch import TorchIterableDataset

        wrapped = TorchIterableDataset(shoal.DataLoader(dataset, batch_size=4))
        assert isinstance(wrapped, torch.utils.data.IterableDataset)
        batches = list(torch.utils.data.DataLoader(wrapped, batch_size=None))
        assert [batch["cls"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert torch.equal(batches[2]["x.npy"], torch.tensor([[8.0] * 3, [9.0] * 3]))
        with pytest.raises(ValueError):
            TorchIterableDataset(dataset)

    def test_torch_map_dataset_of_what_reports_a_length(self, dataset):
        import torch

        from shoal.torch import TorchMapDataset

        wrapped = TorchMapDataset(dataset)
        assert isinstance(wrapped, torch.utils.data.Dataset)
        assert len(wrapped) == 10
        assert torch.equal(wrapped[7]["x.npy"], torch.full((3,), 7.0))
        batches = torch.utils.data.DataLoader(
            wrapped, batch_size=4, sampler=torch.utils.data.SequentialSampler(wrapped)
        )
        assert [batch["cls"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        with pytest.raises(ValueError):
            TorchMapDataset(iter([1, 2]))

    def test_tensorflow_from_generator(self, dataset):
        import tensorflow as tf

        from shoal.tf import output_signature

        loader = shoal.DataLoader(dataset, batch_size=4)
        tf_dataset = tf.data.Dataset.from_generator(
            loader.generator_signature, output_signature=output_signature(loader)
        )
        assert [batch["cls"].numpy().tolist() for batch in tf_dataset] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert tf_dataset.element_spec["x.npy"] == tf.TensorSpec((None, 3), tf.float32)

    def test_the_tensorflow_helper(self, dataset):
        from shoal.tf import to_tf_dataset

        tf_dataset = to_tf_dataset(shoal.DataLoader(dataset, batch_size=4))
        assert [batch["cls"].numpy().tolist() for batch in tf_dataset] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    @pytest.mark.parametrize("compression", [None, "GZIP"])
    def test_it_mirrors_the_signature_of_tfrecorddataset(self, tmp_path, compression):
        import tensorflow as tf

        from shoal.tf import TFRecordDataset

        with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord"), compression) as writer:
            for number in range(10):
                writer.write(str(number).encode())
        arguments = {"compression_type": compression, "buffer_size": 100, "num_parallel_reads": 2}
        theirs = tf.data.TFRecordDataset([str(tmp_path / "a.tfrecord")], **arguments)
        ours = TFRecordDataset([str(tmp_path / "a.tfrecord")], **arguments)
        assert ours.element_spec == theirs.element_spec
        assert [record.numpy() for record in ours] == [record.numpy() for record in theirs]

    def test_a_hundred_npz_objects_of_a_bucket_through_torch_and_tensorflow(self, s3):
        import torch

        from shoal.tf import to_tf_dataset
        from shoal.torch import TorchIterableDataset, TorchMapDataset

        arrays = npz_objects(s3, 100)
        dataset = shoal.Dataset(s3)
        loader = shoal.DataLoader(dataset, batch_size=16)
        iterable = torch.utils.data.DataLoader(TorchIterableDataset(loader.with_options()), batch_size=None)
        assert np.array_equal(torch.cat([batch["x"] for batch in iterable]).numpy(), arrays)
        mapped = torch.utils.data.DataLoader(TorchMapDataset(dataset), batch_size=16)
        assert np.array_equal(torch.cat([batch["x"] for batch in mapped]).numpy(), arrays)
        tensors = to_tf_dataset(loader.with_options())
        assert np.array_equal(np.concatenate([batch["x"].numpy() for batch in tensors]), arrays)

    def test_the_dataload_command(self, run, dataset, tmp_path):
        done = run("dataload", tmp_path / "a.tar", "--batch-size", 4, "--shuffle", "--seed", 3, "--drop-last", "--json")
        assert done.code == 0
        assert (done.json["batches"], done.json["samples"]) == (2, 8)
        fixed = run("dataload", tmp_path / "a.tar", "--workers", 1, "--prefetch", 2, "--json").json
        assert (fixed["workers"], fixed["prefetch"]) == (1, 2)
        assert run("dataload", tmp_path / "missing.tar").code != 0

    def test_the_examples_are_there(self):
        """tests/test_examples.py runs them."""
        assert {"train_torch.py", "train_tf.py"} <= set(os.listdir(ROOT / "examples"))

    def test_the_documentation_links_to_the_guide_on_performance(self):
        pages = (ROOT / "docs").rglob("*.md")
        assert any("https://www.tensorflow.org/guide/data_performance" in page.read_text() for page in pages)
