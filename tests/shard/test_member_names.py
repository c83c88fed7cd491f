"""Keys and fields: webdataset's rule by default, each variant of it, and name tables that are split alike."""

from __future__ import annotations

import io
import string
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.shard.archives import END, NAMES, by_tarfile, pax_member, reader_feed
from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_expander

from shoal.errors import DuplicateFieldError, OptionError, TarError
from shoal.shard._index_build import build_index
from shoal.shard._member_names import Grouper, KeyRule, as_texts, name_table, split_name, split_names
from shoal.shard._shard_rows import IndexMetadata
from shoal.shard._tar_header import NAME_BYTES

_ANY_NAMES = st.one_of(
    NAMES,
    st.text("ab._/A\n", min_size=1, max_size=10),
    st.text(string.printable + "éÀΣςİ漢\u2028", min_size=1, max_size=8),
    st.builds(
        "{}{}.{}".format,
        st.sampled_from(["", "d/", "__a__/", "x.y/", "./", "../", "__"]),
        st.sampled_from("abAB"),
        st.sampled_from(["txt", "cls", "TXT", "a.b"]),
    ),
)


def _skipped_by_webdataset(name: str) -> bool:
    """What webdataset's own reader leaves out before it looks at keys, asked of the real one."""
    archive = pax_member(name, b"") + END
    return not [part for part in tar_file_expander([{"url": "x", "stream": io.BytesIO(archive)}]) if part]


# ------------------------------------------------------------------------------------------------------------ one name


@pytest.mark.parametrize(
    "name, expected",
    [
        ("a.seg.jpg", ("a", "seg.jpg")),
        ("d.x/a.b.c", ("d.x/a", "b.c")),
        ("./a.jpg", ("./a", "jpg")),
        ("d/.hidden", ("d/", "hidden")),
        ("a.", ("a", "")),
        ("a..b", ("a", ".b")),
        ("a.JPG", ("a", "jpg")),
        ("A.jpg", ("A", "jpg")),
        ("__index__.json", ("__index__", "json")),
        ("d/__b__/c.txt", ("d/__b__/c", "txt")),
        ("../a.txt", ("../a", "txt")),
        ("a", None),
        ("d/a", None),
        (".hidden", None),
        ("..a.b", None),
        ("__meta__", None),
        ("__meta__/x.json", None),
        ("__a.b__", None),
        ("", None),
    ],
)
def test_the_rule_of_webdataset_in_examples(name, expected):
    assert split_name(name) == expected


@settings(max_examples=1500)
@given(_ANY_NAMES)
@example("a.txt\n")
@example("a\n/b.txt")
@example("__x__\n")
@example("____.a")
@example("__.__")
def test_a_name_is_split_as_webdataset_splits_it(name):
    key, field = base_plus_ext(name)
    expected = None if key is None or _skipped_by_webdataset(name) else (key, field.lower())
    assert split_name(name) == expected


@pytest.mark.parametrize(
    "name, expected",
    [
        ("a.seg.jpg", ("a.seg", "jpg")),
        ("d.x/a.b.c", ("d.x/a.b", "c")),
        ("d.x/a", None),
        ("a..b", ("a.", "b")),
        ("a.", ("a", "")),
        (".hidden", None),
        ("d/.hidden", None),
        ("a\nb.c", ("a\nb", "c")),
        ("__meta__/a.b", None),
    ],
)
def test_the_last_dot(name, expected):
    assert split_name(name, KeyRule(dot="last")) == expected


@settings(max_examples=300)
@given(_ANY_NAMES)
def test_every_variant_puts_the_name_together_again(name):
    for dot in ("first", "last"):
        pair = split_name(name, KeyRule(dot=dot, case="keep"))
        assert pair is None or ".".join(pair) == name
        flat = split_name(name, KeyRule(dot=dot, case="keep", folders="flatten"))
        assert flat is None or (pair is not None and flat == (pair[0].rpartition("/")[2], pair[1]))


def test_case_may_be_kept():
    assert split_name("A.JPG", KeyRule(case="keep")) == ("A", "JPG")


def test_folders_may_be_left_out():
    assert split_name("x/y.z/a.b.c", KeyRule(folders="flatten")) == ("a", "b.c")
    assert split_name("d/.hidden", KeyRule(folders="flatten")) is None


@pytest.mark.parametrize(
    "wrong", [{"dot": "second"}, {"folders": "drop"}, {"case": "upper"}, {"group": "all"}, {"encoding": "utf-9"}]
)
def test_a_rule_that_does_not_exist_is_refused(wrong):
    with pytest.raises(OptionError, match=str(next(iter(wrong)))):
        KeyRule(**wrong)


# ----------------------------------------------------------------------------------------------------------- many names


def _samples_of_webdataset(names):
    """Samples as the real grouping makes them: a key with its fields' positions among ``names``."""
    parts = [
        {"fname": name, "data": at, "__url__": "x"} for at, name in enumerate(names) if not _skipped_by_webdataset(name)
    ]
    return [(sample.pop("__key__"), sample) for sample in group_by_keys(parts) if sample.pop("__url__")]


def _samples(names, rule=KeyRule(), parts=1):  # noqa: B008 - a frozen value
    """Samples as the Grouper makes them from ``names`` in ``parts`` calls, in the shape of webdataset's."""
    grouper = Grouper(rule)
    samples = []
    for start in range(0, len(names), max(1, len(names) // parts)):
        part = names[start : start + max(1, len(names) // parts)]
        grouped = grouper.add(part)
        kept = range(len(part)) if grouped.kept is None else grouped.kept.tolist()
        fields = list(grouper.fields)
        samples += [{} for _ in range(len(grouper.keys) - len(samples))]
        for at, row, code in zip(kept, grouped.rows.tolist(), grouped.fields.tolist(), strict=True):
            assert fields[code] not in samples[row], "duplicate"
            samples[row][fields[code]] = start + at
    return list(zip(grouper.keys, samples, strict=True))


@settings(max_examples=500)
@given(st.lists(_ANY_NAMES, max_size=10), st.integers(1, 4))
def test_neighbours_are_grouped_as_webdataset_groups_them(names, parts):
    try:
        expected = _samples_of_webdataset(names)
    except ValueError:
        expected = "duplicate"
    try:
        found = _samples(names, parts=parts)
    except (AssertionError, DuplicateFieldError):
        found = "duplicate"
    assert found == expected


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["a.x", "a.y", "b.x", "b.y", "c.x", "A.x", "d", "__meta__"]), max_size=12, unique=True),
    st.integers(1, 4),
)
def test_the_whole_archive_may_be_grouped(names, parts):
    expected = {}
    for at, name in enumerate(names):
        if "." in name:
            key, _, field = name.partition(".")
            expected.setdefault(key, {})[field] = at
    assert _samples(names, KeyRule(group="archive"), parts) == list(expected.items())


def test_a_key_that_comes_back_is_another_sample_among_neighbours():
    assert [key for key, _ in _samples(["a.txt", "b.txt", "a.cls"])] == ["a", "b", "a"]
    assert [key for key, _ in _samples(["a.txt", "b.txt", "a.cls"], KeyRule(group="archive"))] == ["a", "b"]


def test_a_sample_goes_on_over_members_that_belong_to_none():
    assert _samples(["a.txt", "README", "__meta__/x.y", "a.cls"]) == [("a", {"txt": 0, "cls": 3})]


def test_names_of_no_sample_are_counted():
    skipped = Counter()
    Grouper(skipped=skipped).add(["a.txt", "README", ".x", "__meta__", "b.txt"])
    assert skipped == {"name without key and field": 2, "metadata of the shard": 1}


def test_flattened_folders_must_not_merge_samples():
    rule = KeyRule(folders="flatten")
    assert _samples(["x/a.1", "x/a.2", "y/b.1"], rule) == [("a", {"1": 0, "2": 1}), ("b", {"1": 2})]
    for names in (["x/a.1", "y/a.2"], ["x/a.1", "x/b.1", "y/a.1"], ["a.1", "x/a.1"]):
        with pytest.raises(TarError, match="two samples one") as caught:
            _samples(names, rule)
        assert caught.value.key == "a"
        assert "folders='keep'" in str(caught.value)


def test_flattened_names_in_underscores_do_not_merge():
    rule = KeyRule(folders="flatten")
    assert _samples(["x/__a.b__", "y/__c.d__"], rule) == [("__a", {"b__": 0}), ("__c", {"d__": 1})]


@pytest.mark.parametrize("field", ["__key__", "__url__"])
def test_a_field_with_the_name_of_a_samples_own_facts_is_a_duplicate(field):
    """As in webdataset, where the sample's key stands under that name already."""
    with pytest.raises(ValueError, match="duplicate"):
        _samples_of_webdataset([f"a.{field}"])
    with pytest.raises(DuplicateFieldError) as caught:
        Grouper().add(["a.txt", f"a.{field}"])
    assert caught.value.field == field


def test_fields_that_differ_in_case_only_are_one_unless_case_is_kept():
    archive = by_tarfile([("a.txt", b"1"), ("a.TXT", b"2")])
    with pytest.raises(DuplicateFieldError) as caught:
        build_index(reader_feed(archive), IndexMetadata(len(archive), 0), "memory://x.tar")
    assert (caught.value.key, caught.value.field, caught.value.shard, caught.value.offset) == (
        "a",
        "txt",
        "memory://x.tar",
        1024,
    )
    assert "case='keep'" in str(caught.value)
    kept = build_index(reader_feed(archive), IndexMetadata(len(archive), 0, KeyRule(case="keep")), "memory://x.tar")
    assert list(kept.fields) == ["txt", "TXT"]


LETTERS = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=20)
LIKE_NAMES = st.text("ab1A_./\n", min_size=1, max_size=9)
FIELDS = ["jpg", "seg.png", "json", "a_longer_name"]
NUMBERED = st.builds("{:03d}.{}".format, st.integers(0, 5), st.sampled_from(FIELDS))


def columns(names):
    """Names as a column of headers holds them."""
    return np.array([list(name.encode("utf-8").ljust(NAME_BYTES, b"\0")) for name in names], np.uint8)


@given(st.lists(LETTERS, min_size=1, max_size=8))
def test_a_table_gives_back_its_names(names):
    assert name_table(columns(names)).texts() == names


@pytest.mark.parametrize("name", ["kätzchen.jpg", "a\0b.jpg", "\0b.jpg"])
def test_names_that_a_table_cannot_hold(name):
    assert name_table(columns(["a.jpg", name])) is None


def grouped(grouper, names):
    found = grouper.add(names)
    return found.rows.tolist(), found.fields.tolist(), None if found.kept is None else found.kept.tolist()


@given(
    st.lists(st.lists(LETTERS | LIKE_NAMES | NUMBERED, min_size=1, max_size=9), max_size=3),
    st.sampled_from([KeyRule(), KeyRule(case="keep"), KeyRule(dot="last"), KeyRule(group="archive")]),
)
@example([["__x.jpg", "__y.jpg"]], KeyRule())
@example([["a/b.jpg", "c/d.jpg"]], KeyRule())
@example([["a.b/c", "d.e/f"]], KeyRule())
@example([["a.", "b."]], KeyRule())
@example([["a.jpg", "a.JPG"]], KeyRule())
@example([["a.jpg", "b"]], KeyRule())
@example([["a.x.y", "b.x"]], KeyRule())
@example([["0.jpg", "0.txt"], ["0.cls", "1.jpg"], ["1.txt"]], KeyRule())
def test_a_table_is_grouped_as_its_names_are(runs, rule):
    by_table, by_text = Grouper(rule), Grouper(rule)
    for names in runs:
        assert grouped(by_table, name_table(columns(names))) == grouped(by_text, names)
    assert (by_table.keys, by_table.fields) == (by_text.keys, by_text.fields)


@given(st.lists(NUMBERED, min_size=1, max_size=30))
def test_numbered_names_are_split_without_looking_at_each(names):
    found = split_names(name_table(columns(names)))
    keys, fields = zip(*[name.split(".", 1) for name in names], strict=True)
    assert [found.fields[code] for code in found.codes] == list(fields)
    assert found.fields == list(dict.fromkeys(fields))
    new = [at for at, key in enumerate(keys) if at == 0 or key != keys[at - 1]]
    assert np.flatnonzero(found.is_new).tolist() == new
    assert found.keys == [keys[at] for at in new]


@pytest.mark.parametrize("fields, is_split", [(32, True), (33, False)])
def test_many_fields_are_looked_at_one_by_one(fields, is_split):
    names = [f"000.{number:02d}" for number in range(fields)]
    assert (split_names(name_table(columns(names))) is not None) == is_split
    assert grouped(Grouper(), name_table(columns(names))) == grouped(Grouper(), names)


def test_a_fields_own_name_is_refused_in_a_table_too():
    with pytest.raises(ValueError, match="name of a fact that every sample has"):
        Grouper().add(name_table(columns(["a.jpg", "a.__key__"])))


def test_parts_become_one_list():
    assert as_texts([["a.b"], name_table(columns(["c.d", "e.f"])), []]) == ["a.b", "c.d", "e.f"]
