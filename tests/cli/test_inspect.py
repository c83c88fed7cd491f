"""info, ls, cat and head: what they say is what is there."""

from __future__ import annotations

import base64
import tarfile

import pytest

import shoal


def test_info_of_a_dataset_with_a_manifest(run, dataset):
    facts = run("info", dataset, "--json").json
    assert facts["kind"] == "dataset"
    assert (facts["shards"], facts["samples"]) == (3, 10)
    assert facts["splits"]["train"]["samples"] == 7
    assert facts["splits"]["validation"] == {
        "shards": 1,
        "samples": 3,
        "bytes": (dataset / "validation-000000.tar").stat().st_size,
    }
    assert facts["bytes"] == sum(path.stat().st_size for path in dataset.glob("*.tar"))
    assert facts["fields"]["bin"] == {"samples": 10, "bytes": 50 * 45}
    assert facts["columns"] == {"json.width": "int64", "json.label": "string", "txt": "string"}
    assert facts["metadata"] == {"made by": "a test"}
    assert facts["compression"] == ["none"]
    payload = sum(total["bytes"] for total in facts["fields"].values())
    assert facts["mean_sample_bytes"] == pytest.approx(payload / 10, abs=0.1)


def test_info_of_one_split(run, dataset):
    facts = run("info", dataset, "--split", "validation", "--json").json
    assert (facts["samples"], list(facts["splits"])) == (3, ["validation"])


def test_info_with_a_manifest_reads_no_tar(run, dataset):
    for path in dataset.glob("train-000001*"):
        path.unlink()
    assert run("info", dataset, "--json").json["samples"] == 10


def test_info_of_a_tar_that_nobody_indexed(run, foreign):
    whole, one = run("info", foreign, "--json").json, run("info", foreign / "x-000000.tar", "--json").json
    assert (one["kind"], one["samples"], one["manifest"]) == ("shard", 4, False)
    assert whole["fields"] == one["fields"]
    assert not (foreign / ".shoal").exists()


def test_info_for_people_says_the_same(run, dataset):
    out = run("info", dataset).out
    for word in ("10 samples in 3 shards", "validation", "json.width", "made by", "bin"):
        assert word in out


def test_info_describes_the_values_of_columns(run, dataset):
    out = run("info", dataset, "--describe").out
    for word in ("0 to 900, mean 450", "dog (5), cat (5)", "distinct"):
        assert word in out
    values = {one["name"]: one for one in run("info", dataset, "--describe", "--json").json["values"]}
    assert (values["json.width"]["max"], values["txt"]["distinct"]) == (900, 10)
    assert "values" not in run("info", dataset, "--json").json


def test_info_names_the_compression(run, tmp_path):
    with shoal.ShardWriter(tmp_path / "z" / "a-%06d.tar", compression="gzip") as writer:
        writer.write({"txt": "a"})
    assert run("info", tmp_path / "z", "--json").json["compression"] == ["gzip"]


def test_ls_lists_shards(run, dataset):
    shards = run("ls", dataset, "--json").json["shards"]
    assert [shard["samples"] for shard in shards] == [4, 3, 3]
    assert (shards[0]["first_key"], shards[0]["last_key"]) == ("k00", "k03")
    assert [shard["samples"] for shard in run("ls", dataset, "--split", "validation", "--json").json["shards"]] == [3]
    assert len(run("ls", dataset, "--limit", 1, "--json").json["shards"]) == 1
    assert "k00 to k03" in run("ls", dataset).out


def test_ls_members_gives_the_places_that_tarfile_gives(run, dataset):
    path = dataset / "train-000000.tar"
    listed = {
        f"{sample['key']}.{field}": (place["offset"], place["size"])
        for sample in run("ls", path, "-l", "--json").json["samples"]
        for field, place in sample["fields"].items()
    }
    with tarfile.open(path) as tar:
        assert listed == {m.name: (m.offset_data, m.size) for m in tar if not m.name.startswith("__")}


def test_ls_where_and_limit(run, dataset):
    done = run("ls", dataset, "--where", "width >= 500 and label = 'cat'", "--json")
    assert [(sample["key"], sample["position"]) for sample in done.json["samples"]] == [
        ("k05", 5),
        ("k07", 7),
        ("k09", 9),
    ]
    done = run("ls", dataset, "--where", "width >= 500", "--limit", 2)
    assert "k05" in done.out
    assert "k07" not in done.out


def test_ls_of_samples_that_do_not_exist_is_an_empty_table(run, dataset):
    done = run("ls", dataset, "--where", "width > 100000")
    assert (done.code, "key" in done.out, "k0" in done.out) == (0, True, False)


def test_cat_writes_the_bytes_of_a_field(run, dataset, tmp_path):
    expected = bytes(range(5)) * 50
    assert run("cat", dataset, "k05", "--field", "bin").data == expected
    assert run("cat", dataset, "5", "-f", ".bin").data == expected
    assert run("cat", dataset, "-f", "bin", "--", "-5").data == expected
    done = run("cat", dataset, "k05", "-f", "bin", "-o", tmp_path / "five.bin")
    assert (done.code, (tmp_path / "five.bin").read_bytes()) == (0, expected)


def test_cat_shows_a_sample(run, dataset):
    out = run("cat", dataset, "k03").out
    for word in ("k03", "train-000000.tar", "150 B", '"width": 300', "number 3"):
        assert word in out
    fields = run("cat", dataset, "k03", "--json").json["fields"]
    assert fields == {"bin": {"bytes": 150}, "json": {"width": 300, "label": "cat"}, "txt": "number 3"}


def test_cat_field_as_json_is_base64(run, dataset):
    done = run("cat", dataset, "k03", "-f", "bin", "--json")
    assert base64.b64decode(done.json["base64"]) == bytes(range(3)) * 50


def test_cat_takes_a_key_before_a_position(run, tmp_path):
    with shoal.ShardWriter(tmp_path / "d" / "a.tar") as writer:
        for key in ("2", "1", "0"):
            writer.write({"__key__": key, "txt": f"key {key}"})
    assert run("cat", tmp_path / "d", "2", "-f", "txt").out == "key 2"
    assert run("cat", tmp_path / "d", "2", "-f", "txt", "-p").out == "key 0"


@pytest.mark.parametrize(
    "args, code, word",
    [
        (["k3"], 1, "did you mean 'k03'"),
        (["10"], 1, "no sample at this position"),
        (["k03", "-f", "jpg"], 1, "bin or json or txt"),
        (["k03", "-o", "x"], 2, "--field"),
        (["k03", "-p"], 2, "whole number"),
    ],
)
def test_cat_says_what_is_wrong(run, dataset, args, code, word):
    done = run("cat", dataset, *args)
    assert (done.code, done.data) == (code, b"")
    assert word in done.err


def test_head(run, dataset):
    done = run("head", dataset, "-n", 3, "--json").json
    assert [sample["key"] for sample in done["samples"]] == ["k00", "k01", "k02"]
    assert done["total"] == 10
    assert done["samples"][2]["fields"]["json"] == {"width": 200, "label": "dog"}
    out = run("head", dataset, "--where", "label = 'cat'", "-n", 2).out
    assert "k03" in out
    assert "number 3" in out
    assert "150 B" in out
    assert "k02" not in out


def test_head_of_some_fields(run, dataset):
    for args in (["--fields", "txt,json"], ["--fields", "txt", "--fields", ".json"]):
        done = run("head", dataset, *args, "--json").json
        assert set(done["samples"][0]["fields"]) == {"txt", "json"}
    assert run("head", dataset, "--fields", "jpg").code == 1


def test_head_keeps_fields_that_do_not_decode(run, tmp_path):
    with shoal.ShardWriter(tmp_path / "d" / "a.tar") as writer:
        writer.write({"__key__": "a", "json": b"{no json"})
    assert run("head", tmp_path / "d", "--json").json["samples"][0]["fields"] == {"json": {"bytes": 8}}


def test_head_longer_than_the_dataset(run, dataset):
    assert len(run("head", dataset, "-n", 100, "--json").json["samples"]) == 10
