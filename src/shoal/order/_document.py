"""Orders from what ``to_json`` wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import OptionError
from shoal.order._block import BlockShuffle
from shoal.order._orders import GlobalShuffle, Order, Sequential, WithReplacement

__all__ = ["order_from_json"]

_KINDS: dict[str, Callable[..., Order]] = {
    "sequential": Sequential,
    "global": GlobalShuffle,
    "block": BlockShuffle,
    "replacement": WithReplacement,
}


def order_from_json(document: Mapping[str, Any]) -> Order:
    """The order that wrote ``document`` with ``to_json``.

    Weights are not written, only named, so a weighted order is made from its weights instead.

    Raises:
        OptionError: no order is written like this.

    Example:
        >>> order = BlockShuffle(1000, seed=1, block_samples=10, window=2, lanes=4)
        >>> order_from_json(order.to_json()) == order
        True
    """
    settings = dict(document)
    kind = _KINDS.get(settings.pop("order", ""))
    if kind is None:
        raise OptionError("no order is written like this", expected=" or ".join(_KINDS), found=document.get("order"))
    try:
        return kind(**settings)
    except TypeError as error:
        raise OptionError("no order is written like this", expected="what to_json gave", found=error) from None
