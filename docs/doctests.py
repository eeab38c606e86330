"""For the API pages: examples in docstrings are shown as code, where Markdown would take `>>>` for a quotation."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts a fence around each example of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """An example goes on until the next empty line."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
