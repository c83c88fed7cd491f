"""Which format a path is, and how others are added."""

from __future__ import annotations

import pytest
from tests.formats.tars import PACKERS, make_tar, numbered, write_tar

from shoal import Dataset, ShardWriter, register_format
from shoal.errors import FormatError, ManifestError, ObjectNotFoundError, OptionError
from shoal.formats import SourceOptions, _registry, detect, formats, open_source
from shoal.store import store_for


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(_registry, "_FORMATS", dict(_registry._FORMATS))


def open_nothing(path, options):
    return ("opened", path, options)


class TestDetect:
    @pytest.mark.parametrize("name", ["a.tar", "a.TAR", "a.tgz", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.tar.zst"])
    def test_by_ending(self, name):
        assert detect(name) == "webdataset"
        assert detect([name, "whatever"]) == "webdataset"

    @pytest.mark.parametrize("ending", PACKERS)
    def test_by_content(self, tmp_path, ending):
        path = tmp_path / "no-ending"
        path.write_bytes(PACKERS[ending](make_tar(numbered(1))))
        assert detect(path) == "webdataset"

    def test_by_manifest(self, tmp_path):
        with ShardWriter(tmp_path / "odd-%06d.bin") as writer:
            writer.write({"txt": "x"})
        assert detect(tmp_path) == "webdataset"
        assert detect(tmp_path / ".shoal" / "manifest.json") == "webdataset"

    def test_a_manifest_of_others_is_not_ours(self, tmp_path):
        (tmp_path / "web-manifest.json").write_text("{}")
        with pytest.raises(FormatError):
            detect(tmp_path / "web-manifest.json")

    def test_a_folder_by_its_files(self, tmp_path):
        (tmp_path / "d").mkdir()
        (tmp_path / "README.md").write_text("hello")
        write_tar(tmp_path / "d" / "a.tar", numbered(1))
        assert detect(tmp_path) == "webdataset"

    def test_an_empty_folder_is_called_that(self, tmp_path):
        (tmp_path / ".hidden").touch()
        with pytest.raises(ObjectNotFoundError, match="the folder is empty"):
            detect(tmp_path)

    def test_a_folder_not_by_its_hidden_files(self, tmp_path):
        assert "arrow" in formats()
        (tmp_path / ".shoal" / "index").mkdir(parents=True)
        (tmp_path / ".shoal" / "index" / "a.arrow").write_bytes(b"")
        write_tar(tmp_path / "a.tar", numbered(1))
        assert detect(tmp_path) == "webdataset"

    def test_what_nothing_here_knows(self, tmp_path):
        (tmp_path / "notes.md").write_text("hello")
        with pytest.raises(FormatError, match=r"\.tar"):
            detect(tmp_path)
        with pytest.raises(FormatError, match=r"\.tar"):
            detect(tmp_path / "notes.md")

    def test_what_is_not_there(self, tmp_path):
        with pytest.raises(ObjectNotFoundError):
            detect(tmp_path / "missing")
        with pytest.raises(ObjectNotFoundError):
            detect([])
        with pytest.raises(ObjectNotFoundError):
            detect(f"{tmp_path}/*.tar")

    def test_a_folder_whose_first_shard_is_not_finished(self, tmp_path):
        writer = ShardWriter(tmp_path / "a-%06d.tar")
        writer.write({"txt": "x"})
        with pytest.raises(ManifestError, match="is being written here"):
            detect(tmp_path)
        writer.close()
        assert detect(tmp_path) == "webdataset"

    def test_a_url(self):
        store_for("memory://x").write_all("memory://registry/plain", make_tar(numbered(1)))
        assert detect("memory://registry/plain") == "webdataset"
        assert detect("memory://elsewhere/a-{0..3}.tar") == "webdataset"


class TestRegister:
    @pytest.mark.parametrize("ending", ["notes", ".notes", ".NOTES"])
    def test_a_format_opens_its_files(self, ending, tmp_path):
        (tmp_path / "a.Notes").write_text("x")
        register_format("notes", [ending], open_nothing)
        assert "notes" in formats()
        assert detect(tmp_path / "a.Notes") == "notes"
        options = SourceOptions(split="train")
        assert open_source(tmp_path / "a.Notes", options) == ("opened", tmp_path / "a.Notes", options)

    def test_the_longest_ending_wins(self):
        register_format("zipped", ["gz"], open_nothing)
        register_format("notes", ["notes.gz"], open_nothing)
        assert detect("a.notes.gz") == "notes"
        assert detect("a.gz") == "zipped"
        assert detect("a.tar.gz") == "webdataset"

    def test_a_name_or_ending_is_taken_once(self):
        with pytest.raises(OptionError, match="webdataset"):
            register_format("mine", [".tar"], open_nothing)
        with pytest.raises(OptionError, match="webdataset"):
            register_format("webdataset", [".mine"], open_nothing)
        assert detect("a.tar") == "webdataset"

    @pytest.mark.parametrize("name", ["aaa", "zzz"])
    def test_replacing_takes_the_ending_over(self, name):
        register_format(name, [".tar"], open_nothing, replace=True)
        assert detect("a.tar") == name
        assert detect("a.tgz") == "webdataset"

    def test_an_unknown_format(self, tmp_path):
        with pytest.raises(FormatError, match="webdataset"):
            open_source(tmp_path, format="no-such-format")

    def test_a_format_by_name(self, tmp_path):
        path = tmp_path / "tar-under-another-name.md"
        path.write_bytes(make_tar(numbered(2)))
        assert len(open_source(path, format="webdataset")) == 2

    def test_paths_may_come_from_a_generator(self, tmp_path):
        paths = [write_tar(tmp_path / f"{n}.tar", numbered(2, 2 * n)) for n in range(3)]
        assert len(open_source(path for path in paths)) == 6

    def test_datasets_go_through_it(self, tmp_path):
        class Two:
            fields = ("txt",)

            def __len__(self):
                return 2

        register_format("two", ["two"], lambda path, options: Two())
        assert len(Dataset(tmp_path / "a.two")) == 2


def test_tars_win_over_what_lies_beside_them(tmp_path):
    with ShardWriter(tmp_path / "a-%06d.tar") as writer:
        writer.write({"txt": "x"})
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("a\n1\n")
    assert Dataset(tmp_path)[0]["txt"] == "x"
    (tmp_path / ".shoal" / "manifest.json").unlink()
    assert Dataset([tmp_path / "a-000000.tar"])[0]["txt"] == "x"
