"""The backend as PLAID's registry holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import MissingExtraError, OptionError

from ._hub import (
    configure_dataset_card,
    download_datasetdict_from_hub,
    init_datasetdict_streaming_from_hub,
    push_local_datasetdict_to_hub,
)
from ._reader import WebDatasetDict, WebDatasetWrapper, init_datasetdict_from_disk
from ._writer import SampleCallback, SampleGenerator, generate_datasetdict_to_disk
from .bridge import sample_to_var_sample_dict, to_var_sample_dict

if TYPE_CHECKING:
    from plaid import Infos

__all__ = ["WebDatasetBackend", "register"]


class WebDatasetBackend:
    """What PLAID calls: its ``BackendModule`` protocol, over the functions of this package, which say what they do."""

    name = "webdataset"

    @staticmethod
    def init_from_disk(path: str | Path) -> WebDatasetDict:
        """See `init_datasetdict_from_disk`."""
        return init_datasetdict_from_disk(path)

    @staticmethod
    def download_from_hub(
        repo_id: str,
        local_dir: str | Path,
        split_ids: dict[str, Iterable[int]] | None = None,
        features: list[str] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """See `download_datasetdict_from_hub`."""
        return download_datasetdict_from_hub(repo_id, local_dir, split_ids, features, overwrite)

    @staticmethod
    def init_datasetdict_streaming_from_hub(
        repo_id: str, split_ids: dict[str, Iterable[int]] | None = None, features: list[str] | None = None
    ) -> dict[str, WebDatasetWrapper]:
        """See the function of the same name."""
        return init_datasetdict_streaming_from_hub(repo_id, split_ids, features)

    @staticmethod
    def generate_to_disk(
        output_folder: str | Path,
        generators: dict[str, SampleGenerator],
        variable_schema: dict[str, dict[str, Any]] | None = None,
        gen_kwargs: dict[str, dict[str, Any]] | None = None,
        num_proc: int = 1,
        verbose: bool = False,
        sample_callback: SampleCallback | None = None,
        worker_initializer: Callable[[], None] | None = None,
    ) -> None:
        """See `generate_datasetdict_to_disk`; without a ``variable_schema``, OptionError."""
        if variable_schema is None:
            raise OptionError("which features vary must be known", expected="variable_schema", found=None)
        generate_datasetdict_to_disk(
            output_folder,
            generators,
            variable_schema,
            gen_kwargs,
            num_proc,
            verbose,
            sample_callback,
            worker_initializer,
        )

    @staticmethod
    def push_local_to_hub(repo_id: str, local_dir: str | Path, num_workers: int = 1) -> None:
        """See `push_local_datasetdict_to_hub`."""
        push_local_datasetdict_to_hub(repo_id, local_dir, num_workers)

    @staticmethod
    def configure_dataset_card(
        repo_id: str,
        infos: Infos,
        local_dir: str | Path | None = None,
        viewer: bool = False,
        pretty_name: str | None = None,
        dataset_long_description: str | None = None,
        illustration_urls: list[str] | None = None,
        arxiv_paper_urls: list[str] | None = None,
    ) -> None:
        """See the function of the same name."""
        configure_dataset_card(
            repo_id,
            infos,
            local_dir,
            viewer,
            pretty_name,
            dataset_long_description,
            illustration_urls,
            arxiv_paper_urls,
        )

    @staticmethod
    def to_var_sample_dict(
        dataset: WebDatasetWrapper,
        idx: int,
        features: list[str] | None = None,
        indexers: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """See the function of the same name."""
        return to_var_sample_dict(dataset, idx, features, indexers)

    @staticmethod
    def sample_to_var_sample_dict(sample: dict[str, Any]) -> dict[str, Any]:
        """See the function of the same name."""
        return sample_to_var_sample_dict(sample)


def register() -> None:
    """Teach PLAID the backend ``webdataset``. Importing this package does so; doing it again changes nothing.

    Raises:
        MissingExtraError: PLAID is not installed.

    Examples:
        >>> register()
        >>> from plaid.storage.registry import available_backends
        >>> "webdataset" in available_backends()
        True
    """
    try:
        from plaid.storage import registry
    except ImportError as error:
        raise MissingExtraError("PLAID cannot be imported", found=error, hint="pip install 'shoal[plaid]'") from error
    registry.BACKENDS["webdataset"] = WebDatasetBackend
