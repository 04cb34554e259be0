"""Dynamic settings: the value in force in this namespace, and its source."""

from typing import Final

from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Filter, Grid, Grids, text
from fairlead.console.limits import source_of
from fairlead.console.view import Parameters, View
from fairlead.settings import SETTINGS, Scope, as_text


class Asked(Parameters, frozen=True, kw_only=True):
    """`search` is a part of a key, `all` shows the settings with their defaults, too."""

    search: str = ""
    all: bool = False


async def load(context: Context, asked: Asked) -> Grids:
    """Read the settings as this host uses them."""
    await context.require(HOST_METHODS["matching.Describe"])
    settings = context.backend.settings
    scope = Scope(namespace=await context.namespace_id(asked.namespace))
    rows = []
    for one in sorted(SETTINGS, key=lambda one: one.key.lower()):
        rule = settings.rule(one, scope)
        if (rule is None and not asked.all) or asked.search.lower() not in one.key.lower():
            continue
        value, default = (as_text(one.kind.plain(each)) for each in (settings.get(one, scope), one.default))
        rows.append(
            [
                text(one.key),
                text(value),
                text(default),
                text(source_of(rule)),
                text(one.about),
            ]
        )
    grid = Grid(
        id="settings",
        title="All settings" if asked.all else "Settings that are set",
        columns=["Setting", "Value", "Default", "Source", "Meaning"],
        rows=rows,
        empty="No setting matches." if asked.search else "Every setting has its default.",
        hint="Settings come from the file of dynamic settings, and from --dynamic-config-value.",
    )
    filters = [
        Filter(text="Set", changes={"all": None}, is_current=not asked.all),
        Filter(text="All, with their defaults", changes={"all": "true"}, is_current=asked.all),
    ]
    return Grids(grids=[grid], search="Key contains", filters=filters)


VIEW: Final = View(
    path="settings",
    title="Settings",
    nav="Settings",
    access=HOST_METHODS["matching.Describe"],
    parameters=Asked,
    load=load,
    template=TEMPLATE,
)
