"""Compatibility rules of other readers: webdataset, Hugging Face ``datasets``, NVIDIA DALI.

Each rule is a fact about one of them, tested against the real package where that can be installed. A violation is a
warning when that reader fails or loses data, else a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ._findings import Finding, Severity

__all__ = ["READERS", "RULES", "LintRule", "hf_name", "lint_finding", "name_violations"]

READERS = ("webdataset", "huggingface", "dali")
"""The readers whose rules are checked."""


@dataclass(frozen=True, slots=True)
class LintRule:
    """One way in which a dataset may not work with a reader."""

    name: str
    readers: tuple[str, ...]
    severity: Severity
    what: str
    why: str
    advice: str


_ALL = READERS
_RENAME = "write it again with plain names: `shoal.ShardWriter` refuses the others"
_TABLE = (
    LintRule(
        "dropped-name",
        _ALL,
        "warning",
        "a member's name has no key and field",
        "every reader passes it over without a word: a name needs something before and after the first dot",
        "give it an extension, or leave it out",
    ),
    LintRule(
        "dotfile",
        _ALL,
        "warning",
        "a hidden file is in the tar",
        "webdataset makes a sample of its own of `folder/.name`, Hugging Face and DALI pass it over; macOS leaves such"
        " files (`._name`) in every tar it makes",
        "pack again without them: `tar --exclude='.*'`, on macOS with COPYFILE_DISABLE=1, or `shoal pack`",
    ),
    LintRule(
        "dunder-name",
        ("webdataset", "huggingface"),
        "warning",
        "a file's name starts with two underscores",
        "Hugging Face passes it over; webdataset does so only where the name, or its first folder, also ends with two",
        _RENAME,
    ),
    LintRule(
        "case",
        ("huggingface", "dali"),
        "warning",
        "an extension is not in lower case",
        "webdataset lowers it, Hugging Face and DALI do not: `JPG` and `jpg` are one field here, two there",
        "write it again with lower-case extensions",
    ),
    LintRule(
        "space-in-name",
        ("dali",),
        "warning",
        "a member's name has a space in it",
        "DALI's index is text with spaces between its parts, so it cannot name this member",
        _RENAME,
    ),
    LintRule(
        "dot-folder",
        _ALL,
        "note",
        "names start with ./",
        "the key keeps it: other tools will not find `./a` under `a`",
        "pack with `tar -C folder -cf x.tar $(ls folder)` or `shoal pack`",
    ),
    LintRule(
        "not-ascii",
        ("dali",),
        "note",
        "a member's name is not ASCII",
        "tars of other makers may store it in another encoding",
        "keep to letters, digits, - and _ in keys",
    ),
    LintRule(
        "pickle",
        ("webdataset", "huggingface"),
        "warning",
        "a field is a pickle",
        "reading it can run any code: webdataset does read it, Hugging Face gives the bytes as they are",
        "store it as json, npy, npz or msgpack",
    ),
    LintRule(
        "extended-header",
        ("dali",),
        "note",
        "members have a PAX or GNU header of their own",
        "1 KiB more a member to read, and DALI's wds2idx misplaces such members; webdataset's writer makes one for each"
        " because it stores times as fractions",
        "write again with `shoal.ShardWriter`, or with webdataset's `mtime=0`",
    ),
    LintRule(
        "key-comes-back",
        _ALL,
        "warning",
        "a key comes back after other keys",
        "other readers give its members as several samples, each without the others; here an index joins them, and a"
        " stream raises InterleavedKeyError",
        "sort the members: `tar --sort=name`, or `shoal pack`",
    ),
    LintRule(
        "split-sample",
        _ALL,
        "warning",
        "a shard begins with the key that the shard before it ends with",
        "a sample that lies in two shards is two samples to every reader",
        "write again so that no sample is divided: `shoal pack`",
    ),
    LintRule(
        "key-twice",
        _ALL,
        "warning",
        "the same key is in a split more than once",
        "a sample may be there twice; by its key only the first is found, and Energon refuses the dataset",
        "make keys unique, for instance with the shard's name before them",
    ),
    LintRule(
        "key-in-splits",
        _ALL,
        "warning",
        "the same key is in more than one split",
        "a sample of one may be in the other too; by its key only the first is found, unless one split is opened, and"
        " Energon refuses the dataset",
        "where they are different samples, open one split to find them by key (split=...), or put the split's name"
        " before the keys; else take the sample out of one of them",
    ),
    LintRule(
        "mixed-fields",
        _ALL,
        "warning",
        "samples have different fields",
        "batches of them cannot be made as they are; DALI stops unless it is told what to do about a missing component",
        "give every sample each field, or name the fields you read",
    ),
    LintRule(
        "hf-first-samples",
        ("huggingface",),
        "warning",
        "the first five samples of a shard have different fields",
        "Hugging Face takes the columns from the first five samples of the first shard, and fails when those differ",
        "put samples that have every field first, or give every sample each field",
    ),
    LintRule(
        "hf-late-field",
        ("huggingface",),
        "warning",
        "a field is in none of the first five samples",
        "Hugging Face knows only the columns of the first five samples of the first shard: it drops this one silently",
        "put a sample with every field first",
    ),
    LintRule(
        "fields-like-keys",
        _ALL,
        "warning",
        "there are nearly as many fields as samples",
        "the field is all behind the first dot of a name: keys with dots in them (`v1.0001.jpg`) make a field of each",
        "put no dots in keys",
    ),
    LintRule(
        "zstd",
        ("webdataset", "dali"),
        "warning",
        "shards are compressed with zstd",
        "webdataset and DALI cannot open them",
        "use gzip, or none: pictures do not get smaller",
    ),
    LintRule(
        "compressed",
        ("dali",),
        "warning",
        "shards are compressed",
        "DALI reads plain tars only; and no reader but shoal finds a sample in it without unpacking all before",
        "write plain tars: pictures and sound do not get smaller",
    ),
    LintRule(
        "hf-neighbours",
        ("huggingface",),
        "warning",
        "files beside the tars change what Hugging Face takes the dataset for",
        "it goes by the commonest extension in the folder, and takes any `name.tar.*` for a tar",
        "move them into a folder whose name starts with a dot",
    ),
    LintRule(
        "empty-shard",
        ("webdataset", "huggingface"),
        "warning",
        "a shard has no samples",
        "webdataset stops a worker that has nothing to read, Hugging Face finds no columns in it when it comes first",
        "leave it out",
    ),
)
RULES = {rule.name: rule for rule in _TABLE}

_PLAIN = re.compile(r"(?:[A-Za-z0-9-][A-Za-z0-9_-]*(?:/[A-Za-z0-9-][A-Za-z0-9_-]*)*\.[a-z0-9][a-z0-9_.]*\n)*")
_PICKLES = ("pkl", "pickle", "pyd", "pth", "pt")
_HAS_PICKLE = re.compile(rf"\.(?:{'|'.join(_PICKLES)})(?:\.gz)?\n")
_PAIR = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_RESERVED = re.compile(r"__[^/]*__(?:$|/)")


def lint_finding(
    rule: str, shard: str | None = None, key: str | None = None, *, found: str | None = None, count: int = 1
) -> Finding:
    """Return the finding that a rule is violated, at its first place."""
    known = RULES[rule]
    return Finding(known.severity, rule, known.what, known.why, known.advice, shard, key, found=found, count=count)


def name_violations(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each rule that a name violates, with the name. Plain names, as nearly all are, are checked in one go.

    Examples:
        >>> list(name_violations(["a.jpg", "b.JPG", "d/._c.jpg", "README"]))
        [('case', 'b.JPG'), ('dotfile', 'd/._c.jpg'), ('dropped-name', 'README')]
    """
    names = list(names)
    joined = "\n".join(names) + "\n"
    if _PLAIN.fullmatch(joined) and not _HAS_PICKLE.search(joined):
        return
    for name in names:
        for rule in _violations_of_name(name):
            yield rule, name


def _violations_of_name(name: str) -> Iterator[str]:
    if _RESERVED.match(name):  # metadata by agreement: everybody passes it over
        return
    base = name.rpartition("/")[2]
    pair = _PAIR.fullmatch(name)
    if base.startswith("."):
        yield "dotfile"
    elif pair is None:
        yield "dropped-name"
    else:
        yield from _violations_of_member(name, base, pair[2])


def _violations_of_member(name: str, base: str, field: str) -> Iterator[str]:
    if base.startswith("__"):
        yield "dunder-name"
    if field != field.lower():
        yield "case"
    if any(letter.isspace() for letter in name):
        yield "space-in-name"
    if name.startswith("./"):
        yield "dot-folder"
    if not name.isascii():
        yield "not-ascii"
    if field.lower().removesuffix(".gz").rpartition(".")[2] in _PICKLES:
        yield "pickle"


def hf_name(name: str) -> tuple[str, str] | None:
    """Return the key and field that Hugging Face reads in a name; None for a name that it skips.

    Examples:
        >>> hf_name("d/a.JPG"), hf_name("d/__a.jpg"), hf_name("a")
        (('d/a', 'JPG'), None, None)
    """
    if name.rpartition("/")[2].startswith((".", "__")):
        return None
    pair = _PAIR.fullmatch(name)
    return None if pair is None else (pair[1], pair[2])
