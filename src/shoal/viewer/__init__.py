"""A page to look at datasets with: samples, columns, shards, schema, lenses, and builds while they run.

::

    _opened     the dataset, and which samples a request is about     _places     where a value lies, and reading it
    _reading    the values a page shows, with as few bytes as it takes _kinds      what a field is to somebody who looks
    _html       elements that escape what is put into them            _values     values as HTML
    _pictures   images made small, heat maps     _plots  lines, bars  _media      bytes for a browser, in parts
    _layout     the frame of every page
    _grid _sample _facets _suggest _shards _schema _lenses _building _problems    the pages, one module each
    _guard      who may ask       _app  addresses                     _serve      from start to stop

Starlette and uvicorn are imported when a viewer starts; nothing here is loaded by ``import shoal``.
"""

from ._server import ViewerAddress, view, viewing

__all__ = ["ViewerAddress", "view", "viewing"]
