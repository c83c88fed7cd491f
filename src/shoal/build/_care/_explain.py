"""Why each kind of damage that a shard's own check finds matters, and what to do about it."""

from __future__ import annotations

from shoal.shard import Problem

from ._finding import Finding

__all__ = ["error_of", "note_of"]

_REPAIR = "run `shoal repair`: it saves every sample that is whole and keeps the damaged shard in quarantine"
_FETCH = "fetch the shard again if there is another copy; else " + _REPAIR

_WORDS = {
    "shard": ("a reader of the dataset stops here", "fetch the shard again, or leave it out with `shoal repair`"),
    "index": (
        "without the right index no sample can be read by its number, and damage in it is not noticed",
        "run `shoal repair`, which makes the index anew where the tar is sound",
    ),
    "header": ("most readers end here without a word and lose all samples behind it", _FETCH),
    "data": ("the sample's bytes are not those that were written; a tar alone would not tell", _FETCH),
    "size": ("the member was changed after it was indexed", _FETCH),
    "name": ("bytes would be taken for another sample's", _FETCH),
    "missing": ("the dataset has fewer samples than it says", _FETCH),
    "extra": ("a reader by index does not see it, a reader in order does", "index the dataset again: `shoal index`"),
    "duplicate": (
        "webdataset and Hugging Face stop with an error at it",
        "write the sample again with each field once, or drop it with `shoal repair`",
    ),
    "filler": ("no sample is damaged, but what changed bytes here may change others", _REPAIR),
    "decode": (
        "training stops, or skips the sample, when it comes to it",
        "write the sample again, or read with on_error='skip'",
    ),
    "manifest": ("the length of the dataset, and so every order and split of it, is computed from it", _REPAIR),
    "hash": ("every byte may be another than when the hash was taken", _FETCH),
}
_OTHER = ("something is not as it was written", _REPAIR)


def error_of(problem: Problem) -> Finding:
    """A problem of one shard, with its explanation."""
    why, advice = _WORDS.get(problem.kind, _OTHER)
    return Finding(
        "error",
        problem.kind,
        problem.problem,
        why,
        advice,
        problem.shard,
        problem.key,
        problem.field,
        problem.offset,
        problem.expected,
        problem.found,
    )


def note_of(problem: Problem) -> Finding:
    """What is worth knowing of one shard."""
    if "no index" in problem.problem:
        why, advice = "only the tar's own structure could be judged", "index the dataset: `shoal index`"
        return Finding("note", "no-index", problem.problem, why, advice, problem.shard)
    return Finding("note", "note", problem.problem, "nothing is damaged", "nothing needs to be done", problem.shard)
