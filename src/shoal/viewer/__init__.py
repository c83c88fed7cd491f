"""A web viewer for datasets: samples, columns, shards, schema, lenses, and builds while they run.

``_server`` starts it, ``_app`` has the routes and checks who asks, and each ``_page_*`` module makes pages.
``_session`` is the open dataset and reads values from it; ``_kinds``, ``_values``, ``_media`` and ``_html`` turn them
into HTML.

Starlette and uvicorn are imported when a viewer starts; nothing here is loaded by ``import shoal``.
"""

from ._server import ViewerAddress, view, viewing

__all__ = ["ViewerAddress", "view", "viewing"]
