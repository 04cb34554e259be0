"""Renders pages and their live parts from templates."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from msgspec import Struct

from fairlead import __version__
from fairlead.console import svg, text
from fairlead.console.static_files import digest
from fairlead.console.tree import partition_tree
from fairlead.console.view import Action, View

LIVE_BLOCK: Final = "live"


class Page(Struct, kw_only=True):
    """Everything except the view's data that a template needs: its variable `page`."""

    base: str
    title: str
    # Parameters of the address, without empty ones.
    parameters: dict[str, str]
    path: str = ""
    namespace: str = ""
    namespaces: list[str] = []
    # Name of the viewer; empty without authorization.
    who: str = ""
    is_guarded: bool = False
    # Token of forms; empty in a live part, where the page's script fills it in.
    csrf: str = ""
    notice: str = ""
    actions: dict[str, Action] = {}
    navigation: tuple[View, ...] = ()
    is_live: bool = False
    # Whether this page shows an error in place of a view.
    is_failure: bool = False
    # Address of Temporal's own pages; empty if they are not there.
    official: str = ""
    codec_endpoint: str = ""
    version: str = __version__

    def url(self, path: str, /, **parameters: object) -> str:
        """The address of a view; the namespace of this page is kept unless another one is given."""
        named: dict[str, object] = {"namespace": self.namespace, **parameters}
        query = urlencode({name: value for name, value in named.items() if value not in {None, "", False}})
        return f"{self.base}/{path}" + (f"?{query}" if query else "")

    def here(self, **changes: object) -> str:
        """The address of this page with other parameters; None or an empty text removes one."""
        return self.url(self.path, **{**self.parameters, **changes})

    @property
    def json(self) -> str:
        """The address of the view's data."""
        query = urlencode(self.parameters)
        return f"{self.base}/{self.path or 'home'}.json" + (f"?{query}" if query else "")

    @property
    def live(self) -> str:
        """The address of the stream of changes."""
        query = urlencode(self.parameters)
        return f"{self.base}/live/{self.path or 'home'}" + (f"?{query}" if query else "")

    def action_url(self, action: Action) -> str:
        """The address to which the form of an action is sent."""
        query = urlencode(self.parameters)
        return f"{self.base}/{self.path or 'home'}/{action.name}" + (f"?{query}" if query else "")

    def static(self, name: str) -> str:
        """The address of a file of the page; it changes with the content, so that browsers may keep the file."""
        return f"{self.base}/static/{digest(name)}/{name}"


def render(template: str, page: Page, **values: object) -> bytes:
    """A whole page."""
    return _environment().get_template(template).render(page=page, **values).encode(errors="replace")


def render_live(template: str, page: Page, values: Mapping[str, Any]) -> str:
    """The live part of a page."""
    found = _environment().get_template(template)
    block = found.blocks.get(LIVE_BLOCK)
    if block is None:
        return ""
    return "".join(block(found.new_context({"page": page, **values})))


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=text.harmless,
        auto_reload=False,
    )
    environment.filters |= {
        "number": text.number,
        "size": text.size,
        "duration": text.duration,
        "moment": text.moment,
        "plural": text.plural,
    }
    environment.globals |= {
        "chart": svg.chart,
        "spark": svg.spark,
        "bar": svg.bar,
        "span": svg.span,
        "lines": svg.lines,
        "tree": partition_tree,
    }
    # Make the macros global instead of importing them in each template: when a single block is rendered, the imports of
    # its template are missing.
    environment.globals["ui"] = environment.get_template("macros.html").module
    return environment


def _source(name: str) -> str | None:
    file = resources.files("fairlead.console") / "templates" / name
    return file.read_text(encoding="utf-8") if file.is_file() else None
