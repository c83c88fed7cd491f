"""The dataset card, a README.md: YAML with the configuration and features, and text with tables and samples.

What people wrote in a card stays; shoal replaces its own part of the text and its own keys of the YAML.
"""

from __future__ import annotations

import bisect
import fnmatch
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.codec._arrays import decode_npy
from shoal.dataset._dataset import Dataset
from shoal.errors import CodecError, FormatError, MissingExtraError
from shoal.schema._json_schema import schema_from_json
from shoal.shard._manifest import Manifest, ShardRecord
from shoal.shard._row_view import RowView
from shoal.shard._source import ShardSource
from shoal.shard._stored_rows import index_path
from shoal.shard._table import ShardRef

from ._content import Content, HubFolder, content_of, raw_rows

__all__ = ["Card", "CardOptions", "dataset_card", "features_of", "made_card", "shown_value"]


_LOOKED_AT, _SHOWN, _PICTURES = 5, 5, 4
_MOST_SHARDS_LOOKED_AT = 4
_LARGEST_PICTURE = 2 << 20
_SHOWN_BY_BROWSERS = frozenset(["bmp", "gif", "jpeg", "jpg", "png", "webp"])
_FRONT = re.compile(r"\A---\s*\n(.*?)^---\s*$\n?", re.DOTALL | re.MULTILINE)
_OUR_KEYS = frozenset({"configs", "dataset_info"})
_BEGIN, _END = "<!-- shoal: begin -->", "<!-- shoal: end -->"
_OURS = re.compile(f"{_BEGIN}.*?{_END}", re.DOTALL)
_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000)
_SIZE_WORDS = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B")


@dataclass(frozen=True, slots=True)
class CardOptions:
    """What a card says that the data does not: see the Hub's documentation of dataset cards for the words.

    Examples:
        >>> CardOptions(license="cc-by-4.0", language=("en",)).license
        'cc-by-4.0'
    """

    license: str | None = None
    pretty_name: str | None = None
    description: str | None = None
    """Text before the tables, as Markdown."""
    language: Sequence[str] = ()
    tags: Sequence[str] = ()
    task_categories: Sequence[str] = ()
    viewer: bool | None = None
    """False hides the Hub's own viewer."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More keys for the YAML."""
    samples: int = _SHOWN
    """Rows in the table of samples."""
    pictures: int = _PICTURES
    """How many images of the data are shown; each is a small file in ``.shoal/card/``."""


@dataclass(frozen=True, slots=True)
class Card:
    """A README, and the pictures that it shows, by path."""

    text: str
    pictures: Mapping[str, bytes] = field(default_factory=dict)


def dataset_card(
    dataset: HubFolder | Dataset[Any] | Mapping[str, Dataset[Any]],
    repo_id: str = "org/name",
    *,
    options: CardOptions | None = None,
    readme: str | None = None,
) -> Card:
    """The card of a dataset, as `push_to_hub` would push it.

    Its YAML has the configuration (which shards are which split), the features, sizes and license; its text a table of
    splits and fields, some samples and pictures, and how to read it with shoal, webdataset and `datasets`. ``readme``
    is the text of a card that is there already: what people wrote in it stays, and only shoal's part is made anew.

    Raises:
        MissingExtraError: PyYAML is not installed; it comes with ``shoal[hub]``.
        FormatError: The YAML of ``readme`` cannot be read.

    Examples:
        >>> import shoal
        >>> _ = shoal.write_samples([{"__key__": "a", "txt": "a cat"}], "memory://doc/card/train-%06d.tar")
        >>> card = dataset_card("memory://doc/card", "org/pets", options=CardOptions(license="mit"))
        >>> card.text.splitlines()[:2]
        ['---', 'license: mit']
    """
    with tempfile.TemporaryDirectory(prefix="shoal-card-") as staging:
        return made_card(content_of(dataset, staging), repo_id, options or CardOptions(), readme)


def made_card(content: Content, repo_id: str, options: CardOptions, readme: str | None) -> Card:
    """The card of what is about to be pushed."""
    samples = _some_samples(content)
    looked_at = [sample for some in samples.values() for sample in some]
    features = features_of([*looked_at, *_with_rare_fields(content, looked_at)])
    pictures = _first_pictures(looked_at, options.pictures)
    front, body = _taken_apart(readme or "")
    facts = CardMetadata(repo_id, content.manifest, features, samples, tuple(pictures))
    said = _front(content.manifest, features, options)
    # What people wrote stays; which files there are is ours to say.
    kept = {name: value for name, value in front.items() if name not in _OUR_KEYS and not _is_asked(name, options)}
    text = f"{_BEGIN}\n{card_text(facts, options.samples)}\n{_END}"
    front = {**kept, **{name: value for name, value in said.items() if name not in kept}}
    return Card(f"---\n{_yaml_text(front)}---\n\n{_body(body, text, options, repo_id)}", pictures)


def _is_asked(name: str, options: CardOptions) -> bool:
    return name in options.extra or getattr(options, name, None) not in (None, ())


def _body(body: str, ours: str, options: CardOptions, repo_id: str) -> str:
    if _OURS.search(body):
        return _OURS.sub(lambda _: ours, body, count=1)
    if body.strip():
        return f"{body.rstrip()}\n\n{ours}\n"
    title = options.pretty_name or repo_id.rpartition("/")[2]
    described = f"{options.description.strip()}\n\n" if options.description else ""
    return f"# {title}\n\n{described}{ours}\n"


def _front(manifest: Manifest, features: list[dict[str, Any]] | None, options: CardOptions) -> dict[str, Any]:
    said: dict[str, Any] = {
        "license": options.license,
        "pretty_name": options.pretty_name,
        "language": list(options.language),
        "task_categories": list(options.task_categories),
        "tags": list(dict.fromkeys([*options.tags, "webdataset", "shoal"])),
        "size_categories": [_SIZE_WORDS[min(bisect.bisect_right(_SIZES, manifest.samples), len(_SIZE_WORDS) - 1)]],
        "viewer": options.viewer,
        **options.extra,
        "configs": [{"config_name": "default", "data_files": _data_files(manifest)}],
        "dataset_info": _info(manifest, features),
    }
    return {name: value for name, value in said.items() if value not in (None, [])}


def _info(manifest: Manifest, features: list[dict[str, Any]] | None) -> dict[str, Any]:
    splits: list[dict[str, Any]] = [
        {
            "name": _split_name(name),
            "num_bytes": sum(_payload_bytes(record) for record in records),
            "num_examples": sum(record.samples for record in records),
        }
        for name, records in manifest.splits.items()
    ]
    size = sum(split["num_bytes"] for split in splits)
    known = {} if features is None else {"features": features}
    return {**known, "splits": splits, "download_size": manifest.bytes, "dataset_size": size}


def _payload_bytes(record: ShardRecord) -> int:
    return sum(size for _, size in record.fields.values()) or record.bytes


def _split_name(name: str) -> str:
    """As `datasets` allows it: letters, digits, underscores and dots."""
    return re.sub(r"\W+", "_", name) or "train"


def _data_files(manifest: Manifest) -> list[dict[str, Any]]:
    paths = {split: [record.path for record in records] for split, records in manifest.splits.items()}
    found = []
    for split, own in paths.items():
        others = [path for other, theirs in paths.items() if other != split for path in theirs]
        patterns = _patterns(own, others)
        found.append({"split": _split_name(split), "path": patterns[0] if len(patterns) == 1 else patterns})
    return found


def _patterns(own: Sequence[str], others: Sequence[str]) -> list[str]:
    """A few patterns that name these shards and none of the others; else the shards one by one."""
    patterns = list(dict.fromkeys(re.sub(r"\d+", "*", _escaped(path)) for path in own))
    clear = not any(fnmatch.fnmatchcase(path, pattern) for path in others for pattern in patterns)
    return patterns if clear and len(patterns) <= max(1, len(own) // 4) else [_escaped(path) for path in own]


def _escaped(path: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", path)


def _taken_apart(readme: str) -> tuple[dict[str, Any], str]:
    found = _FRONT.match(readme)
    if found is None:
        return {}, readme
    yaml = _yaml()
    try:
        front = yaml.safe_load(found[1]) or {}
    except yaml.YAMLError as error:
        raise FormatError("the YAML of the card cannot be read", found=str(error).partition("\n")[0]) from error
    if not isinstance(front, dict):
        raise FormatError("the YAML of the card is not a mapping", found=type(front).__name__)
    return front, readme[found.end() :]


def _yaml_text(front: Mapping[str, Any]) -> str:
    text: str = _yaml().safe_dump(dict(front), sort_keys=False, allow_unicode=True, width=120)
    return text


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("PyYAML is not installed", hint="pip install 'shoal[hub]'") from error
    return yaml


def _some_samples(content: Content) -> dict[str, list[dict[str, Any]]]:
    """The first samples of each split as bytes, from the first of a few of its shards."""
    found: dict[str, list[dict[str, Any]]] = {}
    for split, records in content.manifest.splits.items():
        few = records[:: max(1, len(records) // _MOST_SHARDS_LOOKED_AT)][:_MOST_SHARDS_LOOKED_AT]
        found[split] = [sample for record in few for sample in _head(content, record)]
    return found


def _head(content: Content, record: ShardRecord) -> list[dict[str, Any]]:
    with _opened(content, record) as source:
        rows = np.delete(np.arange(len(source)), content.deleted.get(record.path, []))
        return _read(source, record, rows[:_LOOKED_AT])


def _with_rare_fields(content: Content, seen: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A sample with each field that none of those seen has: what is said of the columns must be of all of them."""
    known, found = {name for sample in seen for name in sample}, list[dict[str, Any]]()
    for record in content.manifest.shards:
        for name in record.fields.keys() - known:
            with _opened(content, record) as source:
                rows = range(len(source))
                row = next(row for row in rows if any(member.field == name for member in source.index.members(row)))
                found += _read(source, record, np.array([row]))
            known |= found[-1].keys()
    return found


@contextmanager
def _opened(content: Content, record: ShardRecord) -> Iterator[ShardSource]:
    rule, path = content.manifest.rule, record.path
    ref = ShardRef(content.files[path], record.samples, content.files[index_path(path)], rule)
    source = ShardSource([ref], rule=rule)
    try:
        yield source
    finally:
        source.close()


def _read(source: ShardSource, record: ShardRecord, rows: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    return list(raw_rows(source, RowView.from_rows(rows), None, record.bytes / max(record.samples, 1)))


def _first_pictures(samples: Sequence[Mapping[str, Any]], most: int) -> dict[str, bytes]:
    """The first pictures that differ, if they are not too large for a page."""
    fields = [(name.rpartition(".")[2], data) for sample in samples for name, data in sample.items()]
    shown = [(bytes(data), kind) for kind, data in fields if kind in _SHOWN_BY_BROWSERS]
    small = {data: kind for data, kind in shown if len(data) <= _LARGEST_PICTURE}
    return {f".shoal/card/{at:02d}.{kind}": data for at, (data, kind) in enumerate([*small.items()][:most])}


@dataclass(frozen=True, slots=True)
class CardMetadata:
    """What the text of a card is made from."""

    repo_id: str
    manifest: Manifest
    features: Sequence[Mapping[str, Any]] | None
    samples: Mapping[str, Sequence[Mapping[str, Any]]]
    pictures: Sequence[str]


def card_text(facts: CardMetadata, samples: int) -> str:
    """All of shoal's part, as Markdown."""
    parts = [
        _splits(facts),
        _fields(facts),
        _typed(facts),
        _pictures_section(facts),
        _samples(facts, samples),
        _usage(facts),
    ]
    return "\n\n".join(part for part in parts if part)


def _splits(facts: CardMetadata) -> str:
    rows = [
        (name, f"{sum(r.samples for r in records):,}", f"{len(records):,}", _size(sum(r.bytes for r in records)))
        for name, records in facts.manifest.splits.items()
    ]
    return "## Splits\n\n" + _table(("split", "samples", "shards", "size"), rows)


def _fields(facts: CardMetadata) -> str:
    kinds, totals = column_kinds(facts.features), dict[str, list[int]]()
    for record in facts.manifest.shards:
        for name, (count, size) in record.fields.items():
            total = totals.setdefault(name, [0, 0])
            total[0] += count
            total[1] += size
    rows = [(name, kinds.get(name, ""), f"{count:,}", _size(size)) for name, (count, size) in totals.items()]
    return "## Fields\n\n" + _table(("field", "type", "samples", "size"), rows) if rows else ""


def _typed(facts: CardMetadata) -> str:
    """What is inside the payload of typed samples, which no other reader shows."""
    if facts.manifest.schema is None:
        return ""
    schema = schema_from_json(facts.manifest.schema)
    rows = [(each.name, repr(each.type)) for each in schema.fields]
    return f"## Samples of type {_plain(schema.name)}\n\n" + _table(("field", "type"), rows)


def _pictures_section(facts: CardMetadata) -> str:
    shown = " ".join(f'<img src="./{path}" height="160" alt="a sample"/>' for path in facts.pictures)
    return f"## Pictures\n\n{shown}" if shown else ""


def _samples(facts: CardMetadata, most: int) -> str:
    chosen = [(split, sample) for split, some in facts.samples.items() for sample in some][:most]
    names = list(dict.fromkeys(name for _, sample in chosen for name in sample if not name.startswith("__")))
    rows = [
        (split, sample["__key__"], *(shown_value(name, sample[name]) if name in sample else "" for name in names))
        for split, sample in chosen
    ]
    return "## Samples\n\n" + _table(("split", "key", *names), rows) if rows else ""


def _usage(facts: CardMetadata) -> str:
    repo = facts.repo_id
    split, records = next(iter(facts.manifest.splits.items()), ("train", ()))
    shard = _brace_pattern([record.path for record in records])
    return f"""## Use

With [shoal](https://pypi.org/project/shoal/): any sample at once, shuffled, resumable, only the bytes that are needed.

```python
import shoal

ds = shoal.load_dataset("hf://datasets/{repo}", split="{split}")
print(len(ds), ds[0])
for batch in ds.shuffle(10_000).batch(64):
    ...
```

With `datasets`:

```python
from datasets import load_dataset

ds = load_dataset("{repo}", split="{split}", streaming=True)
print(next(iter(ds)))
```

With [webdataset](https://github.com/webdataset/webdataset), in order:

```python
import webdataset as wds

ds = wds.WebDataset("https://huggingface.co/datasets/{repo}/resolve/main/{shard}").decode()
```"""


def _brace_pattern(paths: Sequence[str]) -> str:
    """All these names as one, where they are numbered one after the other; else the first.

    Examples:
        >>> _brace_pattern(["a-00.tar", "a-01.tar", "a-02.tar"])
        'a-{00..02}.tar'
    """
    if not paths:
        return "train-000000.tar"
    first = re.match(r"(.*?)(\d+)(\D*)$", paths[0])
    if first is None or len(paths) == 1:
        return paths[0]
    head, number, tail = first.groups()
    numbers = [f"{int(number) + step:0{len(number)}d}" for step in range(len(paths))]
    if [f"{head}{each}{tail}" for each in numbers] != list(paths):
        return paths[0]
    return f"{head}{{{numbers[0]}..{numbers[-1]}}}{tail}"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Text from a dataset, which Markdown must take for nothing else."""
    spaced = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#~" else letter for letter in spaced)


def _size(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


IMAGES = frozenset(["bmp", "gif", "jpeg", "jpg", "png", "ppm", "pgm", "tif", "tiff", "webp"])
AUDIO = frozenset(["aac", "aif", "aiff", "flac", "m4a", "mp3", "ogg", "opus", "wav"])
VIDEO = frozenset(["avi", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "webm"])
_TEXTS = frozenset({"txt", "text", "transcript"})
_NUMBERS = frozenset({"cls", "cls2", "index", "inx", "id"})
_JSON = frozenset({"json", "jsn"})
_PACKED = frozenset(["gz", "bz2", "xz", "zst", "lz4", "mp", "msg", "cbor", "ten", "tb", "npz", "pth"])
"""What `datasets` unpacks or decodes in ways of its own: nothing is said of datasets with these."""


class _UnknownFeature(Exception):  # noqa: N818 - never leaves this module
    """The type of a column cannot be told from a few samples."""


def features_of(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The features as a card's YAML has them, of samples with fields as bytes; None when they cannot be told.

    Examples:
        >>> features_of([{"__key__": "a", "jpg": b"...", "json": b'{"age": 3}'}])[:2]
        [{'name': 'jpg', 'dtype': 'image'}, {'name': 'json', 'struct': [{'name': 'age', 'dtype': 'int64'}]}]
    """
    # `datasets` looks at the first five samples of one shard, which must all have the same fields. A card that names
    # the features spares it that, so samples may differ. They must be right: if in doubt the card names none.
    names = list(dict.fromkeys(name for sample in samples for name in sample if not name.startswith("__")))
    try:
        features = [_feature(name, [sample[name] for sample in samples if name in sample]) for name in names]
    except (_UnknownFeature, CodecError, pa.ArrowException, ValueError):
        return None
    return [*features, {"name": "__key__", "dtype": "string"}, {"name": "__url__", "dtype": "string"}]


def column_kinds(features: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Each column and what it is, in a word."""
    return {each["name"]: str(each.get("dtype", "list" if "list" in each else "struct")) for each in features or ()}


def _feature(name: str, values: Sequence[Any]) -> dict[str, Any]:
    extension = name.rpartition(".")[2]
    if extension in _PACKED:
        raise _UnknownFeature
    for word, extensions in (("image", IMAGES), ("audio", AUDIO), ("video", VIDEO), ("string", _TEXTS)):
        if extension in extensions:
            return {"name": name, "dtype": word}
    if extension in _NUMBERS:
        return {"name": name, "dtype": "int64"}
    if extension in _JSON:
        return {"name": name, **_of_arrow(_arrow_type([msgspec.json.decode(value) for value in values]))}
    if extension == "npy":
        return {"name": name, **_of_arrays([decode_npy(value) for value in values])}
    return {"name": name, "dtype": "binary"}


def _arrow_type(values: list[Any]) -> pa.DataType:
    tables = [pa.Table.from_pylist([{"value": value}]) for value in values]
    kind: pa.DataType = pa.concat_tables(tables, promote_options="permissive").schema.field("value").type
    return kind


def _of_arrow(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise _UnknownFeature
        return {"struct": [{"name": field.name, **_of_arrow(field.type)} for field in kind]}
    if pa.types.is_list(kind):
        return {"list": _item(_of_arrow(kind.value_type))}
    word = {"double": "float64", "string": "string", "int64": "int64", "bool": "bool"}.get(str(kind))
    if word is None:
        raise _UnknownFeature
    return {"dtype": word}


def _item(inner: dict[str, Any]) -> Any:
    """What is in a list, in as few words as YAML has for it."""
    return next(iter(inner.values())) if list(inner) in (["dtype"], ["struct"]) else inner


def _of_arrays(arrays: list[Any]) -> dict[str, Any]:
    kinds = {(array.dtype, array.ndim) for array in arrays if isinstance(array, np.ndarray)}
    if len(kinds) != 1:
        raise _UnknownFeature
    dtype, dimensions = kinds.pop()
    if dtype.kind not in "biuf" or dimensions == 0:
        raise _UnknownFeature
    inner: dict[str, Any] = {"dtype": dtype.name}
    for _ in range(dimensions):
        inner = {"list": _item(inner)}
    return inner


def shown_value(name: str, data: Any, longest: int = 60) -> str:
    """A field's value in a few words: text as it is, bytes as their size, an array as its type and shape.

    Examples:
        >>> shown_value("txt", b"a cat"), shown_value("jpg", bytes(2048))
        ('a cat', '2,048 bytes')
    """
    extension = name.rpartition(".")[2]
    if extension == "npy":
        try:
            array = decode_npy(data)
        except CodecError:
            return f"{len(data):,} bytes"
        return f"{array.dtype} {tuple(array.shape)}"
    if extension not in _TEXTS | _NUMBERS | _JSON:
        return f"{len(data):,} bytes"
    text = " ".join(bytes(data).decode("utf-8", "replace").split())
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
