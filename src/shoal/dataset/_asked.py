"""What a dataset is asked for, refused where it cannot be: the error says what would do instead."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.errors import OptionError
from shoal.protocols import DataSource
from shoal.sample import DictSample, is_record

__all__ = ["check_path", "check_sample_type"]


def check_path(path: Any) -> None:
    """Raise OptionError for what names no dataset."""
    is_stream = hasattr(path, "read") and not isinstance(path, DataSource)
    if is_stream or (isinstance(path, str) and path == "-"):
        raise OptionError(
            "a stream has no positions, and a dataset is read by them",
            expected="a path or a URL",
            found=type(path).__name__ if is_stream else "stdin",
            hint="read it once, in order: shoal.formats.webdataset.stream(...), which DataLoader takes, too",
        )
    if isinstance(path, (str, os.PathLike, DataSource)):
        _refuse_command(path)
        return
    odd = [path] if not isinstance(path, Iterable) else [each for each in path if not _is_path(each)]
    if odd:
        expected = "a path, a pattern, a list of them or a DataSource"
        raise OptionError("this names no dataset", expected=expected, found=repr(odd[0]))


def _is_path(path: object) -> bool:
    return isinstance(path, (str, os.PathLike))


def _refuse_command(path: object) -> None:
    if isinstance(path, str) and path.startswith("pipe:"):
        raise OptionError(
            "no command is run for a path",
            expected="a path or a URL",
            found=repr(path),
            hint="run it before Python and stream what it writes: `COMMAND | python ...` with "
            "shoal.formats.webdataset.stream('-')",
        )


def check_sample_type(kind: Any) -> None:
    """Raise OptionError for a class that is no type of samples."""
    if not isinstance(kind, type) or kind is object or is_record(kind) or issubclass(kind, (Mapping, DictSample)):
        return
    if hasattr(kind, "from_bytes") and kind is not int:  # a class of the user's that packs itself
        return
    raise OptionError(
        "this is no type of samples",
        expected="a @packable class, a dataclass, a Struct, a pydantic model or dict",
        found=kind.__name__,
    )
