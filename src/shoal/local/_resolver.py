"""``@local/name`` for ``load_dataset``."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import OptionError
from shoal.protocols import DataFiles, Resolved

from ._default import default_index
from ._entry import Entry

__all__ = ["LocalResolver", "resolver"]

_PREFIXES = ("@local/", "shoal://local/dataset/")


class LocalResolver:
    """Makes ``load_dataset`` understand the datasets of the default index.

    Example:
        >>> import shoal
        >>> from shoal.local import LocalIndex, Repo, set_default_index
        >>> set_default_index(LocalIndex("memory://"))
        >>> _ = Repo("memory://doc/resolver", index=shoal.local.default_index()).insert([{"txt": "a cat"}], name="pets")
        >>> shoal.load_dataset("@local/pets", split="train")[0]["txt"]
        'a cat'
        >>> set_default_index(None)
    """

    def matches(self, reference: str, /) -> bool:
        """``@local/...``, and the long form."""
        return reference.startswith(_PREFIXES)

    def resolve(
        self,
        reference: str,
        /,
        *,
        split: str | None = None,
        data_files: DataFiles | Mapping[str, DataFiles] | None = None,
    ) -> Resolved:
        """Where the dataset lies, and the class of its samples. Raises CatalogKeyError when there is none."""
        if data_files is not None:
            raise OptionError("an entry of an index has its own files", expected="no data_files", found=reference)
        return resolved(default_index().get_dataset(reference))


def resolved(entry: Entry) -> Resolved:
    """An entry as ``load_dataset`` takes it."""
    entry.reach()
    files = entry.storage.root if entry.storage.has_manifest else entry.splits
    return Resolved(files, entry.sample_type())


resolver = LocalResolver()
