"""The dataset card: a README whose YAML tells the Hub and `datasets` what is where, and whose text tells people."""

from __future__ import annotations

import bisect
import fnmatch
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.dataset import Dataset
from shoal.errors import FormatError, MissingExtraError
from shoal.shard import Manifest, ShardRecord, ShardRef, ShardSource, members_of

from ._card_text import CardFacts, card_text
from ._content import Content, HubFolder, content_of, index_path
from ._features import features_of
from ._raw_samples import raw_rows

__all__ = ["Card", "CardOptions", "dataset_card", "made_card"]

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

    Example:
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

    Example:
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
    pictures = _pictures(looked_at, options.pictures)
    front, body = _taken_apart(readme or "")
    facts = CardFacts(repo_id, content.manifest, features, samples, tuple(pictures))
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


# ----------------------------------------------------------------------------------------------------------------- YAML


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
    told = {} if features is None else {"features": features}
    return {**told, "splits": splits, "download_size": manifest.bytes, "dataset_size": size}


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


# -------------------------------------------------------------------------------------------------------------- samples


def _some_samples(content: Content) -> dict[str, list[dict[str, Any]]]:
    """The first samples of each split as bytes, from the first of a few of its shards."""
    found: dict[str, list[dict[str, Any]]] = {}
    for split, records in content.manifest.splits.items():
        few = records[:: max(1, len(records) // _MOST_SHARDS_LOOKED_AT)][:_MOST_SHARDS_LOOKED_AT]
        found[split] = [sample for record in few for sample in _head(content, record)]
    return found


def _head(content: Content, record: ShardRecord) -> list[dict[str, Any]]:
    with _opened(content, record) as source:
        return _read(source, record, np.arange(min(_LOOKED_AT, len(source)), dtype=np.int64))


def _with_rare_fields(content: Content, seen: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A sample with each field that none of those seen has: what is said of the columns must be of all of them."""
    known, found = {name for sample in seen for name in sample}, list[dict[str, Any]]()
    for record in content.manifest.shards:
        for name in record.fields.keys() - known:
            with _opened(content, record) as source:
                index = source.shard(0).index
                row = next(row for row in range(len(index)) if any(m.field == name for m in members_of(index, row)))
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
    return list(raw_rows(source, rows, None, record.bytes / max(record.samples, 1)))


def _pictures(samples: Sequence[Mapping[str, Any]], most: int) -> dict[str, bytes]:
    """The first pictures that differ, if they are not too large for a page."""
    fields = [(name.rpartition(".")[2], data) for sample in samples for name, data in sample.items()]
    shown = [(bytes(data), kind) for kind, data in fields if kind in _SHOWN_BY_BROWSERS]
    small = {data: kind for data, kind in shown if len(data) <= _LARGEST_PICTURE}
    return {f".shoal/card/{at:02d}.{kind}": data for at, (data, kind) in enumerate([*small.items()][:most])}
