"""Views and actions: what a module of `fairlead.console.views` declares."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from fairlead.authorization.methods import OPERATOR_SERVICE, WORKFLOW_SERVICE, MethodAccess, access_of
from fairlead.http import Response

if TYPE_CHECKING:
    from fairlead.console.context import Context

# Names and values of a submitted form.
Form: TypeAlias = Mapping[str, str]

# Characters of one field of a form, and of a reason.
FIELD_CHARACTERS_MAX: Final = 1_000_000
REASON_CHARACTERS_MAX: Final = 500


class Parameters(Struct, frozen=True, kw_only=True):
    """Parameters of a view's address; a view with more derives from this one. Every parameter has a default."""

    namespace: str = "default"


class FieldKind(Enum):
    """The kind of input element that a form has for a field."""

    TEXT = "text"
    LONG_TEXT = "textarea"
    CHOICE = "select"
    FLAG = "checkbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of an action's form."""

    name: str
    label: str
    kind: FieldKind = FieldKind.TEXT
    is_required: bool = False
    hint: str = ""
    # Values of a choice with their texts.
    choices: tuple[tuple[str, str], ...] = ()


def _always(_: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A change that a view offers. POST /console/<path of the view>/<name> carries it out.

    `act` gets the view's parameters and the form, and returns the sentence that the next page shows. `access` is the
    method that it calls: the button is absent for viewers who may not call it. `applies` tells from the view's data
    whether the action makes sense now. With `word`, the viewer must type this word.
    """

    name: str
    label: str
    access: MethodAccess
    act: Callable[["Context", Any, Form], Awaitable[str]]
    fields: tuple[Field, ...] = ()
    about: str = ""
    asks_reason: bool = True
    word: str = ""
    applies: Callable[[Any], bool] = _always


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A page of the console, at /console/<path>?<parameters>; its data is at /console/<path>.json.

    `load` turns the parameters into a struct, which `template` shows. The template's block `live` is sent again when it
    changes, unless `is_live` is off. Views with a text in `nav` are in the navigation, in the order of the table.
    """

    path: str
    title: str
    parameters: type[Parameters]
    load: Callable[["Context", Any], Awaitable[Struct]]
    template: str
    nav: str = ""
    # Key that follows `g` in the shortcut to the view.
    key: str = ""
    is_live: bool = True
    # Method that the view needs: the navigation leaves the view out for viewers who may not call it.
    access: MethodAccess | None = None
    actions: tuple[Action, ...] = field(default=())
    # Documents by name, at /console/<path>/<name>: pages that the console has not rendered, with their own headers.
    documents: Mapping[str, Callable[["Context"], Awaitable[Response]]] = field(default_factory=dict)

    def action(self, name: str) -> Action | None:
        """The action of this name."""
        return next((action for action in self.actions if action.name == name), None)


def workflow_method(name: str) -> MethodAccess:
    """The requirements of a method of WorkflowService, for `Action.access` and `Context.may`."""
    return access_of(WORKFLOW_SERVICE, name)


def operator_method(name: str) -> MethodAccess:
    """The requirements of a method of OperatorService."""
    return access_of(OPERATOR_SERVICE, name)
