"""API keys: permissions, expiry and last use of each, and their revocation."""

from typing import Final

from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.authorization.messages import (
    CREATE_KEY,
    LIST_KEYS,
    REVOKE_KEY,
    CreateKeyRequest,
    ListKeysRequest,
    RevokeKeyRequest,
)
from fairlead.authorization.roles import SYSTEM_NAMESPACE
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Cell, Grid, Grids, button, moment, text
from fairlead.console.view import Action, Field, FieldKind, Form, Parameters, View
from fairlead.core.errors import FixRequest
from fairlead.rpc.hosts.caller import UnknownMethod

_DAY_S: Final = 86_400.0
DAYS_MAX: Final = 3_650
ROLES: Final = ("worker", "reader", "writer", "admin")


async def load(context: Context, _asked: Parameters) -> Grids:
    """Read all keys, the newest first."""
    try:
        found = await context.ask_host(context.backend.host, LIST_KEYS, ListKeysRequest())
    except UnknownMethod:
        return Grids(
            grids=[],
            sentence="This server has no authorization, and so no API keys: every caller may do everything. "
            "docs/security.md leads to a locked cluster in ten minutes.",
            kind="problem",
        )
    rows = []
    for one in reversed(found.keys):
        named = ", ".join(
            f"{role} of {'the system' if namespace == SYSTEM_NAMESPACE else namespace}"
            for namespace, role in one.permissions
        )
        rows.append(
            [
                text(one.name or one.id),
                text(one.id),
                text(f"cluster {one.cluster}" if one.cluster else named),
                _state(one.revoked_s, one.expires_s, context.now_s),
                moment(one.created_s),
                text(one.created_by or "unknown"),
                moment(one.expires_s),
                moment(one.last_used_s),
                text("") if one.revoked_s else button("revoke", id=one.id),
            ]
        )
    columns = ["Name", "Id", "May", "State", "Created", "By", "Expires", "Last used", ""]
    hint = "Create one here, or with: fairlead admin key create"
    grid = Grid(id="keys", title="API keys", columns=columns, rows=rows, empty="There is no API key.", hint=hint)
    return Grids(grids=[grid], page_actions=["create"])


def _state(revoked_s: float, expires_s: float, now_s: float) -> Cell:
    if revoked_s:
        return text("revoked", "warn")
    return text("expired", "warn") if 0 < expires_s <= now_s else text("valid", "good")


async def _create(context: Context, _asked: Parameters, form: Form) -> str:
    days = form.get("days", "") or "90"
    if not days.isdecimal() or not 1 <= int(days) <= DAYS_MAX:
        raise FixRequest(f"days is {days!r}: give a whole number from 1 to {DAYS_MAX}")
    request = CreateKeyRequest(
        form.get("name", ""),
        form.get("namespace", "") or SYSTEM_NAMESPACE,
        form.get("role", ""),
        expires_s=context.now_s + int(days) * _DAY_S,
    )
    made = await context.ask_host(context.backend.host, CREATE_KEY, request)
    return f"The key is shown only here, copy it now: {made.key}"


async def _revoke(context: Context, _asked: Parameters, form: Form) -> str:
    await context.ask_host(context.backend.host, REVOKE_KEY, RevokeKeyRequest(form.get("id", "")))
    return "The key is revoked: every host refuses it in a few seconds."


VIEW: Final = View(
    path="keys",
    title="API keys",
    nav="API keys",
    access=HOST_METHODS["authorization.ListKeys"],
    parameters=Parameters,
    load=load,
    template=TEMPLATE,
    # Not live: each time the keys are listed, the audit gets a record.
    is_live=False,
    actions=(
        Action(
            name="create",
            label="Create a key",
            access=HOST_METHODS["authorization.CreateKey"],
            act=_create,
            fields=(
                Field(name="name", label="Name", is_required=True),
                Field(name="namespace", label="For namespace", hint="empty: the whole system"),
                Field(name="role", label="Role", kind=FieldKind.CHOICE, choices=tuple((role, role) for role in ROLES)),
                Field(name="days", label="Valid for days", hint="90 by default"),
            ),
        ),
        Action(
            name="revoke",
            label="Revoke",
            access=HOST_METHODS["authorization.RevokeKey"],
            act=_revoke,
            word="revoke",
        ),
    ),
)
