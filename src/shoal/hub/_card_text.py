"""The part of a card that people read and shoal writes: tables of splits, fields and samples, and how to use it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.schema import schema_from_json
from shoal.shard import Manifest

from ._features import column_kinds, shown_value

__all__ = ["CardFacts", "card_text"]


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What the text of a card is made from."""

    repo_id: str
    manifest: Manifest
    features: Sequence[Mapping[str, Any]] | None
    samples: Mapping[str, Sequence[Mapping[str, Any]]]
    pictures: Sequence[str]


def card_text(facts: CardFacts, samples: int) -> str:
    """All of shoal's part, as Markdown."""
    parts = [_splits(facts), _fields(facts), _typed(facts), _pictures(facts), _samples(facts, samples), _usage(facts)]
    return "\n\n".join(part for part in parts if part)


def _splits(facts: CardFacts) -> str:
    rows = [
        (name, f"{sum(r.samples for r in records):,}", f"{len(records):,}", _size(sum(r.bytes for r in records)))
        for name, records in facts.manifest.splits.items()
    ]
    return "## Splits\n\n" + _table(("split", "samples", "shards", "size"), rows)


def _fields(facts: CardFacts) -> str:
    kinds, totals = column_kinds(facts.features), dict[str, list[int]]()
    for record in facts.manifest.shards:
        for name, (count, size) in record.fields.items():
            total = totals.setdefault(name, [0, 0])
            total[0] += count
            total[1] += size
    rows = [(name, kinds.get(name, ""), f"{count:,}", _size(size)) for name, (count, size) in totals.items()]
    return "## Fields\n\n" + _table(("field", "type", "samples", "size"), rows) if rows else ""


def _typed(facts: CardFacts) -> str:
    """What is inside the payload of typed samples, which no other reader shows."""
    if facts.manifest.schema is None:
        return ""
    schema = schema_from_json(facts.manifest.schema)
    rows = [(each.name, repr(each.type)) for each in schema.fields]
    return f"## Samples of type {_plain(schema.name)}\n\n" + _table(("field", "type"), rows)


def _pictures(facts: CardFacts) -> str:
    shown = " ".join(f'<img src="./{path}" height="160" alt="a sample"/>' for path in facts.pictures)
    return f"## Pictures\n\n{shown}" if shown else ""


def _samples(facts: CardFacts, most: int) -> str:
    chosen = [(split, sample) for split, some in facts.samples.items() for sample in some][:most]
    names = list(dict.fromkeys(name for _, sample in chosen for name in sample if not name.startswith("__")))
    rows = [
        (split, sample["__key__"], *(shown_value(name, sample[name]) if name in sample else "" for name in names))
        for split, sample in chosen
    ]
    return "## Samples\n\n" + _table(("split", "key", *names), rows) if rows else ""


def _usage(facts: CardFacts) -> str:
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

    Example:
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
