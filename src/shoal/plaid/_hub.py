"""Push, stream and download PLAID datasets on the Hugging Face Hub, and write their cards."""

from __future__ import annotations

import html
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import FieldError, ObjectExistsError, ObjectNotFoundError
from shoal.hub._client import client_of, hub_url, patiently
from shoal.hub._push import push_to_hub
from shoal.shard._manifest import Manifest, load_manifest
from shoal.store._huggingface import HubStore
from shoal.store._registry import store_for
from shoal.store._url import join_url

from ._layout import check_split, describe_splits, split_metadata, staging_folder
from ._reader import FoundSplit, WebDatasetWrapper, chosen_splits, splits_at
from ._writer import place_shards, write_values

if TYPE_CHECKING:
    from plaid import Infos

__all__ = [
    "configure_dataset_card",
    "download_datasetdict_from_hub",
    "init_datasetdict_streaming_from_hub",
    "push_local_datasetdict_to_hub",
]

SplitIds = dict[str, Iterable[int]]
_PATTERNS = ["data/*", ".shoal/manifest.json", ".shoal/index/*"]


def push_local_datasetdict_to_hub(repo_id: str, local_dir: str | Path, num_workers: int = 1) -> None:
    """Upload the shards of a dataset in a folder, their indexes and its manifest; PLAID uploads its own files itself.

    The repository is made where there is none. What is there already is not sent again, so a push that was interrupted
    is simply made again. Files are sent as `shoal.hub.push_to_hub` sends them, whatever ``num_workers`` says.

    Raises:
        ObjectNotFoundError: There is no dataset in the folder.
        AccessDeniedError: The token may not write there, or there is none.
    """
    splits_at(str(local_dir))
    push_to_hub(str(local_dir), repo_id, readme=False, message="Upload WebDataset shards")


def init_datasetdict_streaming_from_hub(
    repo_id: str, split_ids: SplitIds | None = None, features: list[str] | None = None
) -> dict[str, WebDatasetWrapper]:
    """The splits of a dataset on the Hub: samples are fetched as they are asked for, by number or one after the other.

    ``split_ids`` gives the numbers of the samples wanted of each split, in order, and ``features`` the paths of the
    features: nothing else is fetched but the manifest, indexes, and what PLAID needs to make trees of these features.

    Raises:
        FieldError: There is no such split or feature.
        PositionError: There is no such sample; when the split is first used.
        ObjectNotFoundError, AccessDeniedError: There is no such repository, or it may not be read.
    """
    root = hub_url(repo_id)
    HubStore().forget(root)  # it may have been pushed a moment ago, by clients of other packages
    found = splits_at(root)
    names = chosen_splits(found, split_ids)
    wanted = None if features is None else _needed(root, found, features)
    return {
        name: found[name].opened(None if split_ids is None else [int(number) for number in split_ids[name]], wanted)
        for name in names
    }


def download_datasetdict_from_hub(
    repo_id: str,
    local_dir: str | Path,
    split_ids: SplitIds | None = None,
    features: list[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Download a dataset from the Hub to a folder, which is returned: all of it, or some samples and features.

    ``split_ids`` and ``features`` are as for `init_datasetdict_streaming_from_hub`; samples keep their numbers. A
    folder with something in it is refused, or with ``overwrite`` replaced, once all has come.

    Raises:
        ObjectExistsError: The folder is not empty.
        FieldError, PositionError: There is no such split, feature or sample.
        ObjectNotFoundError, AccessDeniedError: There is no such repository, or it may not be read.
    """
    target = Path(local_dir)
    if target.exists() and not overwrite and (not target.is_dir() or any(target.iterdir())):
        raise ObjectExistsError("the folder is not empty", found=str(target), hint="pass overwrite=True to replace it")
    splits = init_datasetdict_streaming_from_hub(repo_id, split_ids, features)
    for name, split in splits.items():
        check_split(name)
        if split_ids is not None:
            split.ids  # noqa: B018 - raises PositionError, before anything is removed
    # What is to be replaced stays until the new is whole.
    place = target.with_name(f".{target.name}.download") if target.exists() else target
    try:
        if split_ids is None and features is None:
            _download_all(repo_id, place)
        else:
            _download_some(splits, place)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    if place != target:
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        os.replace(place, target)
    return target


def _download_all(repo_id: str, target: Path) -> None:
    client = client_of(repo_id)
    patiently(
        lambda: client.snapshot_download(repo_id, repo_type="dataset", allow_patterns=_PATTERNS, local_dir=str(target)),
        hub_url(repo_id),
    )


def _download_some(splits: Mapping[str, WebDatasetWrapper], target: Path) -> None:
    """Write what is wanted of each split as a dataset of its own."""
    described = {}
    for name, split in splits.items():
        fields = {path: field for path, field in split.fields.items() if path in split.features}
        samples = zip(split.ids.tolist(), split, strict=True)
        written = write_values(str(staging_folder(target) / name), fields, samples)
        described[name] = (place_shards(target, name, [written], []), fields)
    describe_splits(target, described)
    shutil.rmtree(staging_folder(target))


def _needed(root: str, splits: Mapping[str, FoundSplit], features: Sequence[str]) -> list[str]:
    """The variable features among these, and those without which PLAID can make no tree of them.

    A constant feature is not an error, and nothing to fetch. Raises FieldError for one that is neither.
    """
    variable = list(dict.fromkeys(path for split in splits.values() for path in split.opened().features))
    constant = _constant_features(root, splits)
    if unknown := [path for path in features if path not in variable and path not in constant]:
        some = " or ".join(path for path in variable[:8]) or "none: the dataset has no variable features"
        raise FieldError("no such feature", expected=some, found=" and ".join(unknown))
    named = _expanded(features, constant, variable)
    return [path for path in variable if path in named]


def _expanded(features: Sequence[str], constant: Iterable[str], variable: Iterable[str]) -> set[str]:
    from plaid.utils.cgns_helper import update_features_for_CGNS_compatibility

    try:
        named = update_features_for_CGNS_compatibility(list(features), constant, variable)
    except (AssertionError, KeyError, ValueError):  # it wants names of a certain form; arrays can be had without
        named = list(features)
    return {*named, *(f"{path}_times" for path in named)}


def _constant_features(root: str, splits: Iterable[str]) -> list[str]:
    """What PLAID's own files say is the same in all samples of a split; nothing where they are not there."""
    import yaml  # type: ignore[import-untyped]

    found: dict[str, Any] = {}
    for name in splits:
        url = join_url(root, "constants", name, "constant_schema.yaml")
        try:
            found |= yaml.safe_load(store_for(url).read_all(url)) or {}
        except ObjectNotFoundError:
            continue
    return list(found)


_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))

_USAGE = """
This dataset was generated with [`plaid`](https://plaid-lib.readthedocs.io/) and is stored as WebDataset tar shards by
[`shoal`](https://pypi.org/project/shoal/): `pip install 'shoal[plaid]'`. Download it:

```python
import shoal.plaid  # teaches plaid the backend
from plaid.storage import download_from_hub, init_from_disk

download_from_hub("{repo_id}", "downloaded_dataset")
datasetdict, converterdict = init_from_disk("downloaded_dataset")
dataset, converter = datasetdict["{split}"], converterdict["{split}"]
for i in dataset.ids:
    plaid_sample = converter.to_plaid(dataset, i)
```

Or stream it, fetching only what is asked for:

```python
import shoal.plaid
from plaid.storage import init_streaming_from_hub

datasetdict, converterdict = init_streaming_from_hub("{repo_id}")
for sample in datasetdict["{split}"]:
    plaid_sample = converterdict["{split}"].sample_to_plaid(sample)
```

### Format

`data/<split>/shard-000000.tar` are plain tars that `webdataset` and `datasets` read too. A sample is
`sample_000000000.json`, which names its features, and a `.npy` for each variable feature. What all samples of a split
share is in `constants/`.

```python
from datasets import load_dataset

for sample in load_dataset("{repo_id}", split="{split}", streaming=True):
    paths = dict(sample["json"]["features"])  # the path of each member
```
"""


def configure_dataset_card(
    repo_id: str,
    infos: Infos | dict[str, Any],
    local_dir: str | Path | None = None,
    viewer: bool | None = None,
    pretty_name: str | None = None,
    dataset_long_description: str | None = None,
    illustration_urls: list[str] | None = None,
    arxiv_paper_urls: list[str] | None = None,
) -> None:
    """Write the dataset's card, ``README.md``, on the Hub: what it is, its splits, how to use it.

    ``infos`` are PLAID's, or a mapping of them. Sizes are told where ``local_dir`` holds the dataset. ``viewer`` says
    whether the Hub shows samples; None leaves it to the Hub. Raises AccessDeniedError, ObjectNotFoundError.
    """
    facts = dict(infos) if isinstance(infos, Mapping) else infos.model_dump(exclude_none=True)
    manifest = None if local_dir is None else load_manifest(str(local_dir))
    splits = _splits(facts, manifest, str(local_dir))
    head = _front_matter(facts, splits, manifest, viewer, pretty_name)
    text = "".join(
        [
            head,
            _pictures(illustration_urls or []),
            f"```yaml\n{_yaml(facts)}```\n",
            _USAGE.format(repo_id=repo_id, split=next(iter(splits), "train")),
            _description(dataset_long_description),
            _papers(arxiv_paper_urls or []),
        ]
    )
    client = client_of(repo_id)
    patiently(
        lambda: client.upload_file(
            path_or_fileobj=text.encode(),
            path_in_repo="README.md",
            repo_id=repo_id,
            repo_type="dataset",
            commit_message="Configure the dataset card",
        ),
        hub_url(repo_id),
    )


def _splits(facts: Mapping[str, Any], manifest: Manifest | None, root: str) -> dict[str, int]:
    """How many samples each split has."""
    if manifest is not None and (metadata := split_metadata(manifest, root)):
        return {name: split.samples for name, split in metadata.items()}
    return dict(facts.get("num_samples") or {})


def _front_matter(
    facts: Mapping[str, Any],
    splits: Mapping[str, int],
    manifest: Manifest | None,
    viewer: bool | None,
    pretty_name: str | None,
) -> str:
    found: dict[str, Any] = {"license": facts.get("license", "unknown")}
    if pretty_name is not None:
        found["pretty_name"] = pretty_name
    if viewer is not None:
        found["viewer"] = viewer
    found |= {"task_categories": ["graph-ml"], "tags": ["physics learning", "geometry learning", "webdataset", "plaid"]}
    found["size_categories"] = [next((name for most, name in _SIZES if sum(splits.values()) < most), "n>1M")]
    if manifest is not None:
        found["dataset_info"] = _sizes(splits, manifest)
    # A pattern that matches nothing is an error to `datasets`, so an empty split is not named.
    files = [{"split": name, "path": f"data/{name}/*.tar"} for name, count in splits.items() if count]
    if files:
        found["configs"] = [{"config_name": "default", "data_files": files}]
    return f"---\n{_yaml(found)}---\n\n"


def _sizes(splits: Mapping[str, int], manifest: Manifest) -> dict[str, Any]:
    sizes = {name: sum(record.bytes for record in manifest.splits.get(name, ())) for name in splits}
    total = sum(sizes.values())
    named = [{"name": name, "num_bytes": sizes[name], "num_examples": count} for name, count in splits.items() if count]
    return {"splits": named, "download_size": total, "dataset_size": total}


def _pictures(urls: Sequence[str]) -> str:
    if not urls:
        return ""
    shown = (f"<img src='{html.escape(url)}' alt='{html.escape(url)}' width='1000'/>\n" for url in urls)
    return f"<p align='center'>\n{''.join(shown)}</p>\n\n"


def _yaml(facts: Mapping[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(dict(facts), sort_keys=False, allow_unicode=True)
    return text


def _description(text: str | None) -> str:
    return f"\n### Dataset Description\n\n{text}\n" if text else ""


def _papers(urls: Sequence[str]) -> str:
    if not urls:
        return ""
    return "\n### Dataset Sources\n\n- **Papers:**\n" + "".join(f"   - [arxiv]({url})\n" for url in urls)
