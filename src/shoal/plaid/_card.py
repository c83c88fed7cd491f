"""The dataset card of a PLAID dataset on the Hub."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.hub import client_of, hub_url, patiently
from shoal.shard import Manifest, load_manifest

from ._layout import facts_of

if TYPE_CHECKING:
    from plaid import Infos

__all__ = ["configure_dataset_card"]

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
            _about(facts),
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
    if manifest is not None and (said := facts_of(manifest, root)):
        return {name: split.samples for name, split in said.items()}
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
    told = [{"name": name, "num_bytes": sizes[name], "num_examples": count} for name, count in splits.items() if count]
    return {"splits": told, "download_size": total, "dataset_size": total}


def _pictures(urls: Sequence[str]) -> str:
    if not urls:
        return ""
    shown = (f"<img src='{html.escape(url)}' alt='{html.escape(url)}' width='1000'/>\n" for url in urls)
    return f"<p align='center'>\n{''.join(shown)}</p>\n\n"


def _about(facts: Mapping[str, Any]) -> str:
    return f"```yaml\n{_yaml(facts)}```\n"


def _yaml(facts: Mapping[str, Any]) -> str:
    import yaml  # type: ignore[import-untyped]

    text: str = yaml.safe_dump(dict(facts), sort_keys=False, allow_unicode=True)
    return text


def _description(text: str | None) -> str:
    return f"\n### Dataset Description\n\n{text}\n" if text else ""


def _papers(urls: Sequence[str]) -> str:
    if not urls:
        return ""
    return "\n### Dataset Sources\n\n- **Papers:**\n" + "".join(f"   - [arxiv]({url})\n" for url in urls)
