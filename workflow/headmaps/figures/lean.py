"""Import this before matplotlib's drawing classes: it spares a third of the time that loading them takes.

Matplotlib writes the docstrings of its setters anew at every start, from the properties of each of its classes. Nobody
reads them in a job that draws a figure. Where a later version of matplotlib has other names, nothing is spared.
"""

import matplotlib.artist


def _nothing(*_: object) -> str:
    return ""


if hasattr(matplotlib.artist, "kwdoc"):
    matplotlib.artist.kwdoc = _nothing  # type: ignore[assignment]
if hasattr(matplotlib.artist.Artist, "_update_set_signature_and_docstring"):
    matplotlib.artist.Artist._update_set_signature_and_docstring = classmethod(_nothing)  # type: ignore[assignment,arg-type]
