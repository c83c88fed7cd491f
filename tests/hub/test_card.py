"""The card: what its YAML says is what `datasets` understands, and what people wrote in it stays."""

from __future__ import annotations

import io
import json

import datasets
import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.hub.conftest import write

import shoal
from shoal.errors import FormatError
from shoal.hub import CardOptions, dataset_card, push_to_hub
from shoal.hub._card import _patterns, features_of, shown_value


def front(card):
    return yaml.safe_load(card.text.split("---\n")[1])


def test_what_the_yaml_says(folder):
    said = front(dataset_card(folder, "org/pets", options=CardOptions(license="mit", language=("en",), tags=("x",))))
    assert said["license"] == "mit"
    assert said["language"] == ["en"]
    assert said["tags"] == ["x", "webdataset", "shoal"]
    assert said["size_categories"] == ["n<1K"]
    assert said["configs"] == [
        {
            "config_name": "default",
            "data_files": [{"split": "train", "path": "train-*.tar"}, {"split": "test", "path": "test-*.tar"}],
        }
    ]
    info = said["dataset_info"]
    assert [(each["name"], each["num_examples"]) for each in info["splits"]] == [("train", 30), ("test", 8)]
    assert info["download_size"] == sum(record.bytes for record in shoal.Dataset(folder).source.manifest.shards)
    assert info["dataset_size"] == sum(each["num_bytes"] for each in info["splits"])
    features = datasets.Features._from_yaml_list(info["features"])
    assert features == datasets.Features(
        {
            "bin": datasets.Value("binary"),
            "json": {"n": datasets.Value("int64"), "split": datasets.Value("string")},
            "txt": datasets.Value("string"),
            "cls": datasets.Value("int64"),
            "__key__": datasets.Value("string"),
            "__url__": datasets.Value("string"),
        }
    )


def test_what_people_read(folder):
    options = CardOptions(pretty_name="My *Pets*", description="All of them.", samples=2)
    text = dataset_card(folder, "org/pets", options=options).text
    assert "# My *Pets*\n\nAll of them.\n" in text
    assert "| train | 30 | 3 |" in text
    assert "| txt | string | 38 |" in text
    assert "| train | train00001 | 2,000 bytes |" in text
    assert "train00002" not in text
    assert 'shoal.load_dataset("hf://datasets/org/pets", split="train")' in text
    assert 'load_dataset("org/pets", split="train", streaming=True)' in text
    assert "https://huggingface.co/datasets/org/pets/resolve/main/train-{000000..000002}.tar" in text


def test_text_from_the_data_stays_text(tmp_path):
    evil = "<script>| `x` [a](b) *c*\n# d"
    shoal.write_samples([{"__key__": "a", "txt": evil, "json": {"s": evil}}], tmp_path / "d" / "train-%06d.tar")
    text = dataset_card(tmp_path / "d").text
    assert "<script>" not in text
    assert r"\<script\>\| \`x\` \[a\](b) \*c\* \# d" in text


def picture(color):
    made = io.BytesIO()
    Image.new("RGB", (8, 6), color).save(made, "png")
    return made.getvalue()


def test_pictures_of_the_data(hub, tmp_path):
    colors = ["red", "red", "green", "blue", "white", "black"]
    made = [{"__key__": f"{at}", "png": picture(color)} for at, color in enumerate(colors)]
    shoal.write_samples(made, tmp_path / "d" / "train-%06d.tar")
    card = dataset_card(tmp_path / "d", options=CardOptions(pictures=3))
    assert [*card.pictures] == [f".shoal/card/0{at}.png" for at in range(3)]
    assert [*card.pictures.values()] == [picture(color) for color in ("red", "green", "blue")]
    assert all(f'src="./{path}"' in card.text for path in card.pictures)
    push_to_hub(tmp_path / "d", "tester/pictures", card=CardOptions(pictures=3))
    files = hub.repos["dataset", "tester/pictures"].files()
    assert all(files[path] == data for path, data in card.pictures.items())
    push_to_hub(tmp_path / "d", "tester/pictures", card=CardOptions(pictures=1))
    files = hub.repos["dataset", "tester/pictures"].files()
    assert [path for path in files if "/card/" in path] == [".shoal/card/00.png"]


def test_what_people_wrote_stays(hub, folder, tmp_path):
    push_to_hub(folder, "tester/pets", card=CardOptions(license="mit"))
    repo = hub.repos["dataset", "tester/pets"]
    ours = repo.files()["README.md"].decode()
    edited = ours.replace("license: mit", "license: cc0-1.0\nannotations_creators:\n- crowd").replace(
        "# pets", "# Pets of the world\n\nAll photos are my own."
    )
    hub.add("tester/pets", {"README.md": edited.encode()})
    push_to_hub(write(tmp_path / "more", train=45), "tester/pets")
    now = repo.files()["README.md"].decode()
    said = yaml.safe_load(now.split("---\n")[1])
    assert said["license"] == "cc0-1.0"
    assert said["annotations_creators"] == ["crowd"]
    assert said["dataset_info"]["splits"][0]["num_examples"] == 45
    assert "# Pets of the world\n\nAll photos are my own." in now
    assert now.count("shoal: begin") == 1
    assert "| train | 45 | 5 |" in now
    push_to_hub(tmp_path / "more", "tester/pets", card=CardOptions(license="mit"))
    assert "license: mit" in repo.files()["README.md"].decode()


def test_the_folders_own_card_is_taken(hub, folder):
    with open(f"{folder}/README.md", "w") as file:
        file.write("---\nlicense: wtfpl\n---\n# Mine\n")
    push_to_hub(folder, "tester/pets")
    text = hub.repos["dataset", "tester/pets"].files()["README.md"].decode()
    assert "license: wtfpl" in text
    assert "# Mine\n\n<!-- shoal: begin -->" in text
    push_to_hub(folder, "tester/as-it-is", readme=False)
    assert hub.repos["dataset", "tester/as-it-is"].files()["README.md"] == b"---\nlicense: wtfpl\n---\n# Mine\n"


@pytest.mark.parametrize("readme", ["---\n[1, 2\n---\n", "---\n- a\n---\n"])
def test_a_card_that_cannot_be_read(folder, readme):
    with pytest.raises(FormatError, match="YAML of the card"):
        dataset_card(folder, readme=readme)
    assert "# hello" in dataset_card(folder, readme="# hello").text


# ------------------------------------------------------------------------------------------------------------- features

NUMBERS = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.booleans() | NUMBERS | st.text(max_size=5)
NAMES = st.text("abc", min_size=1, max_size=3)
DOCUMENTS = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAMES, v, max_size=3), max_leaves=6
)


@given(st.lists(st.dictionaries(NAMES, DOCUMENTS, max_size=4), min_size=1, max_size=4))
def test_features_are_what_arrow_makes_of_the_samples(documents):
    told = features_of([{"__key__": "k", "json": json.dumps(each).encode()} for each in documents])
    if told is None:  # nothing is said: `datasets` looks for itself
        return
    feature = datasets.Features._from_yaml_list(told)["json"]
    made = datasets.Features({"json": feature})
    assert pa.array(documents, made.arrow_schema.field("json").type) is not None
    expected = pa.concat_tables([pa.table({"json": [each]}) for each in documents], promote_options="permissive").schema
    assert made.arrow_schema.field("json").type == expected.field("json").type


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "int64"])
def test_arrays_are_lists_in_lists(shape, dtype):
    data = shoal.codec.encode_npy(np.zeros(shape, dtype))
    told = features_of([{"x.npy": data}])
    expected = datasets.Value(dtype)
    for _ in shape:
        expected = datasets.List(expected)
    assert datasets.Features._from_yaml_list(told)["x.npy"] == expected


@pytest.mark.parametrize(
    "samples",
    [
        [{"json": b"null"}],
        [{"json": b"{}"}],
        [{"json": b'{"a": []}'}],
        [{"json": b'"text"'}, {"json": b"3"}],
        [{"json": b"not json"}],
        [{"x.npz": b""}],
        [{"json.gz": b""}],
        [{"x.npy": b"broken"}],
        [{"x.npy": shoal.codec.encode_npy(np.zeros(()))}],
        [{"x.npy": shoal.codec.encode_npy(np.zeros(1, "c8"))}],
        [{"x.npy": shoal.codec.encode_npy(np.zeros(1))}, {"x.npy": shoal.codec.encode_npy(np.zeros((1, 1)))}],
    ],
)
def test_where_samples_do_not_tell_nothing_is_said(samples):
    assert features_of(samples) is None


def test_a_field_that_few_samples_have_is_among_the_features(tmp_path):
    made = [{"__key__": f"{at:03d}", "txt": "x", **({"flac": b"..."} if at == 77 else {})} for at in range(100)]
    shoal.write_samples(made, tmp_path / "d" / "train-%06d.tar")
    features = front(dataset_card(tmp_path / "d"))["dataset_info"]["features"]
    assert {"name": "flac", "dtype": "audio"} in features


@pytest.mark.parametrize(
    "name, data, shown",
    [
        ("txt", b"a  cat\n", "a cat"),
        ("cls", b"3", "3"),
        ("json", b"x" * 100, "x" * 57 + "..."),
        ("mp4", bytes(1234), "1,234 bytes"),
        ("x.npy", b"broken", "6 bytes"),
        ("x.npy", shoal.codec.encode_npy(np.zeros((2, 3), "f4")), "float32 (2, 3)"),
    ],
)
def test_a_value_in_a_few_words(name, data, shown):
    assert shown_value(name, data) == shown


@pytest.mark.parametrize(
    "own, others, patterns",
    [
        (["a-0.tar", "a-1.tar", "a-2.tar", "a-3.tar"], ["b-0.tar"], ["a-*.tar"]),
        (["0.tar", "1.tar", "2.tar", "3.tar"], ["9.tar"], ["0.tar", "1.tar", "2.tar", "3.tar"]),
        (["a.tar"], [], ["a.tar"]),
        (["a[1].tar"], [], ["a[[]*].tar"]),
    ],
)
def test_which_files_are_a_split(own, others, patterns):
    assert _patterns(own, others) == patterns
