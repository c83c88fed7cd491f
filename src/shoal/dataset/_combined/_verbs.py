"""Datasets taken apart and put together: ``split``, ``concat``, ``join``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import pyarrow as pa

from shoal.dataset._description import Recipe, Step
from shoal.dataset._dict import DatasetDict
from shoal.dataset._views import Views
from shoal.dataset._where import Expression, Field
from shoal.errors import FieldError, OptionError, SchemaMismatchError
from shoal.sample import is_record, schema_of
from shoal.schema import schema_hash
from shoal.shard import ShardSource

from ._concat import Concatenated, ShardsConcatenated
from ._hash import texts_of
from ._join import Joined, names_of, renamed
from ._join_map import Missing, check_partners, partners
from ._split import By, SplitAgain, checked_weights, grouped_by, is_kept, part_of_each

if TYPE_CHECKING:
    from shoal.dataset._dataset import Dataset

__all__ = ["Combining", "concat"]

T = TypeVar("T")


class Combining(Views[T]):
    """``split``, ``concat``, ``join``."""

    def split(
        self, weights: Mapping[str, float] | None = None, /, *, by: By = "key", seed: int = 0, **named: float
    ) -> DatasetDict[T]:
        """Splits by hash: the same key falls into the same split always, however the dataset grows.

        Weights are shares that sum to 1; a split's size is its share in expectation. ``by`` names a metadata column,
        or is a function of the key, and then all samples of one value fall into one split: ``by="patient"`` keeps a
        patient's images together. Another ``seed`` gives other splits. No tar is opened.

        Raises OptionError for weights that are not one whole, and for samples that have no value in the column.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/split/a-%06d.tar") as writer:
            ...     for number in range(1000):
            ...         writer.write({"__key__": f"k{number:04d}", "json": {"patient": number // 10}})
            >>> splits = shoal.Dataset("memory://doc/split").split(train=0.8, val=0.2, by="patient")
            >>> splits.num_samples
            {'train': 850, 'val': 150}
        """
        shares = checked_weights(weights, named)
        if type(seed) is not int:
            raise OptionError("a seed is a whole number", expected="int", found=repr(seed))
        part = part_of_each(self._groups(by), shares, seed)
        shown = ", ".join(f"{name}={weight:g}" for name, weight in shares.items())
        splits = {}
        for number, name in enumerate(shares):
            rows = self._kept(part == number)
            again = SplitAgain(shares, by, seed, name) if is_kept(by) else None
            step = Step(f"split({shown})[{name!r}]", again, None if again else rows)
            splits[name] = self._view(rows=rows, step=step)
        return DatasetDict(splits, sample_type=self._asked_type)

    def _groups(self, by: By) -> pa.ChunkedArray:
        """The text that decides for each sample. Raises OptionError where a sample has none."""
        if callable(by) and not isinstance(by, (Field, Expression)):
            return grouped_by(self.key_column(), by)
        if not isinstance(by, (str, Field, Expression)):
            raise OptionError("`by` is a column or a function", expected="'key', a column, a function", found=repr(by))
        values = self.column(by)
        if values.null_count:
            hint = f"leave them out: where('{by} is not null')" if isinstance(by, str) else "leave them out"
            found = f"{values.null_count:,} of {len(values):,} samples without"
            raise OptionError("samples have no value to split by", expected=f"a value of {by}", found=found, hint=hint)
        return texts_of(values)

    def concat(self, *others: Dataset[T]) -> Dataset[T]:
        """These samples, then those of the others. See :func:`shoal.dataset.concat`.

        Example:
            >>> import shoal
            >>> for name in ("a", "b"):
            ...     with shoal.ShardWriter(f"memory://doc/concat/{name}/s-%06d.tar") as writer:
            ...         writer.write({"__key__": name, "txt": "hi"})
            >>> a, b = (shoal.Dataset(f"memory://doc/concat/{name}") for name in ("a", "b"))
            >>> a.concat(b, a).keys()
            ['a', 'b', 'a']
        """
        parts = (self, *others)
        for part in others:
            if not isinstance(part, Combining):
                raise OptionError("only datasets can be put together", expected="a Dataset", found=repr(part))
        kind = _one_type(parts)
        if len(parts) == 1:
            return self._view()
        if _are_alike(parts):
            return self._made_of(ShardsConcatenated(parts))  # type: ignore[arg-type] # nobody holds one but a Dataset
        recipe = Concatenated(parts, kind)  # type: ignore[arg-type] # as above
        return self._made_of(recipe, stored_type=None, sample_type=None, stages=(), fields=None)

    def join(
        self,
        other: Dataset[Any],
        on: str | tuple[str, str] = "key",
        *,
        missing: Missing = "error",
        fields: Sequence[str] | None = None,
        suffix: str | None = None,
        sample_type: type[Any] | None = None,
    ) -> Dataset[Any]:
        """Each sample with the fields of its partner in another dataset: column groups in other shards.

        Partners have the same key, or the same value in the metadata column ``on`` (a pair of names where the two
        datasets call it differently); they are found in the indexes. ``missing`` says what becomes of a sample without
        a partner: an error, left out (``"skip"``), or its fields are None (``"none"``). ``fields`` takes only some of
        the other's fields; ``suffix`` is added to those that both have, which is an error else. Samples are dicts of
        both sides' fields, or of ``sample_type``, by field name. ``where`` sees the columns of both sides, and
        ``columns`` reads no more than it must of each.

        Raises SampleKeyError for samples without a partner, FieldError for names that clash, OptionError for samples
        of the other that cannot be told apart.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/join/text/s-%06d.tar") as writer:
            ...     for key in ("a", "b", "c"):
            ...         writer.write({"__key__": key, "txt": f"text {key}"})
            >>> with shoal.ShardWriter("memory://doc/join/scores/s-%06d.tar") as writer:
            ...     for key in ("c", "a"):
            ...         writer.write({"__key__": key, "json": {"score": ord(key)}})
            >>> text, scores = (shoal.Dataset(f"memory://doc/join/{name}") for name in ("text", "scores"))
            >>> joined = text.join(scores, missing="skip")
            >>> [(sample["txt"], sample["json"]) for sample in joined.where("score > 97")]
            [('text c', {'score': 99})]
        """
        if not isinstance(other, Combining):
            raise OptionError("only datasets can be joined", expected="a Dataset", found=repr(other))
        self._refuse_filtered("partners")
        other._refuse_filtered("partners")  # noqa: SLF001 - as self's
        if missing not in get_args(Missing):
            raise OptionError("no such `missing`", expected="'error', 'skip' or 'none'", found=repr(missing))
        left_on, right_on = (on, on) if isinstance(on, str) else _pair(on)
        names = renamed(names_of(self._view()), _taken(names_of(other), fields), suffix)
        rows = partners(self.column(left_on), other.column(right_on))
        left: Dataset[Any] = self._view()
        if missing == "error":
            check_partners(rows, self.key_column())
        elif missing == "skip" and (rows < 0).any():
            left, rows = self._view(rows=self._kept(rows >= 0), step=Step("with a partner")), rows[rows >= 0]
        taken = None if fields is None else tuple(fields)
        recipe = Joined(left, other, rows, names, on, missing, taken, suffix, sample_type)
        return self._made_of(recipe, stored_type=sample_type or dict, sample_type=None, stages=(), fields=None)

    def _made_of(self, recipe: Recipe, **changes: Any) -> Dataset[Any]:
        """A dataset of a recipe, which otherwise is described as this one."""
        return self._another(replace(self.described, path=recipe, steps=(), tombstones=True, format=None, **changes))


def concat(datasets: Iterable[Dataset[T]]) -> Dataset[T]:
    """Datasets one after the other, as one.

    Tar shards that are read in one way become one source, and all that is quick with them stays so; anything else
    (other formats, other options, different functions) is read each in its own way. All must have samples of one type.
    Raises SchemaMismatchError, naming both, when two have not.

    Example:
        >>> import shoal
        >>> for name in ("a", "b"):
        ...     with shoal.ShardWriter(f"memory://doc/concats/{name}/s-%06d.tar") as writer:
        ...         writer.write({"__key__": name, "txt": "hi"})
        >>> concat([shoal.Dataset("memory://doc/concats/a"), shoal.Dataset("memory://doc/concats/b")]).keys()
        ['a', 'b']
    """
    parts = list(datasets)
    if not parts or not isinstance(parts[0], Combining):
        found = type(parts[0]).__name__ if parts else "none"
        raise OptionError("only datasets can be put together", expected="a list of one or more", found=found)
    return parts[0].concat(*parts[1:])


def _one_type(parts: Sequence[Combining[Any]]) -> type[Any]:
    """The type of all samples; ``object`` where a function made some. Raises SchemaMismatchError."""
    kinds = [part.sample_type for part in parts]
    if object in kinds:
        return object
    for part, kind in zip(parts, kinds, strict=True):
        if not _same_type(kind, kinds[0]):
            raise SchemaMismatchError(
                "the datasets have samples of different types",
                expected=f"{kinds[0].__name__}, as in {parts[0]!r}",
                found=f"{kind.__name__} in {part!r}",
                hint=f"see one as the other: as_type({kinds[0].__name__})",
            )
    return kinds[0]


def _same_type(one: type[Any], two: type[Any]) -> bool:
    if one is two:
        return True
    return is_record(one) and is_record(two) and schema_hash(schema_of(one)) == schema_hash(schema_of(two))


def _are_alike(parts: Sequence[Combining[Any]]) -> bool:
    """Whether all are tar shards that are read, checked, decoded and changed in one way."""
    sources = [part.source for part in parts]
    ways = [(source.rule, source.verify, _schema(source)) for source in sources if isinstance(source, ShardSource)]
    if len(ways) < len(parts) or any(way != ways[0] for way in ways):
        return False
    said = [part.described for part in parts]
    return all(
        (each.spec, each.policy, each.fields, each.stored_type, each.stages)
        == (said[0].spec, said[0].policy, said[0].fields, said[0].stored_type, said[0].stages)
        for each in said
    )


def _schema(source: ShardSource) -> Any:
    return None if source.manifest is None else source.manifest.schema


def _pair(on: Any) -> tuple[str, str]:
    if isinstance(on, tuple) and len(on) == 2 and all(isinstance(name, str) for name in on):
        return on[0], on[1]
    raise OptionError("`on` is a column", expected="'key', a name, or a pair of names", found=repr(on))


def _taken(names: Sequence[str], fields: Sequence[str] | None) -> tuple[str, ...]:
    if fields is None:
        return tuple(names)
    if isinstance(fields, str):
        raise OptionError("fields are a list of names", expected=f"[{fields!r}]", found=repr(fields))
    for name in fields:
        if name not in names:
            raise FieldError("the other dataset has no such field", expected=" or ".join(names), found=name)
    return tuple(dict.fromkeys(fields))
