"""`fairlead admin key create|list|revoke`: API keys of workers, clients, operators and other clusters."""

import asyncio
import getpass
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import click

from fairlead.authorization.api_keys import REFRESH_S, describe
from fairlead.authorization.api_keys import ApiKey as StoredKey
from fairlead.authorization.audit import Audit
from fairlead.authorization.claims import Principal
from fairlead.authorization.gate import Decided
from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.authorization.messages import (
    CREATE_KEY,
    LIST_KEYS,
    REVOKE_KEY,
    CreateKeyRequest,
    CreateKeyResponse,
    KeyAdmin,
    ListedKey,
    ListKeysRequest,
    RevokeKeyRequest,
)
from fairlead.authorization.roles import SYSTEM_NAMESPACE
from fairlead.cli.admin.cluster import Cluster, connect
from fairlead.cli.admin.command import admin, common_options, target_of
from fairlead.journal import Journal
from fairlead.report import Cell, DualCell, Output, Report, Table, counted, show
from fairlead.rpc.hosts.caller import UnknownMethod
from fairlead.server.stores import open_store
from fairlead.settings import DynamicSettings, InvalidValue
from fairlead.settings.duration import parse_duration_s
from fairlead.settings.static.config import load_config
from fairlead.telemetry import Metrics

_DAY_S = 86_400.0
# Days of validity of a key without --expires.
DAYS_DEFAULT = 90
# Host of the records of keys that are made in the store itself.
HOST = "command-line"
ROLES = ("worker", "reader", "writer", "admin")


@admin.group(no_args_is_help=True)
def key() -> None:
    """API keys: created here, shown once, revoked at any time.

    Without --config, the commands call a running cluster and need the role admin in the whole system. With --config,
    they open the store itself, for the first key of a cluster; a SQLite file must not be in use by a server.
    """


def _read_expiry(context: click.Context, option: click.Parameter, text: str) -> float:
    if text == "never":
        return 0.0
    days = text[:-1] if text.endswith("d") else ""
    try:
        seconds = float(int(days)) * _DAY_S if days.isdecimal() else parse_duration_s(text)
    except InvalidValue as wrong:
        raise click.BadParameter(f"{text!r} {wrong}; or days like 90d, or never", context, option) from wrong
    if seconds <= 0:
        raise click.BadParameter(f"{text!r} is not above 0", context, option)
    return time.time() + seconds


_config_option = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Open the store of this configuration file instead of calling a cluster.",
)


def _run(ask: Callable[[Cluster], Awaitable[Report]], address: str | None, timeout_s: float | None) -> Report:
    target = target_of(address, timeout_s)

    async def call() -> Report:
        async with connect(target.address, timeout_s=target.timeout_s, credentials=target.credentials) as cluster:
            try:
                return await ask(cluster)
            except UnknownMethod as unknown:
                raise UnknownMethod(
                    "this cluster has no authorization: configure global.authorization, or give --config"
                ) from unknown

    return asyncio.run(call())


def _user() -> str:
    """The name of the user of this process; its number where the system knows no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


async def _in_store(
    file: Path, act: Callable[[KeyAdmin], Awaitable[Report]], note: tuple[str, object] | None
) -> Report:
    """Open the store of a configuration and act on its keys.

    `note` has the name of a method that changes something, and its request: it becomes a record of the audit.
    """
    config = load_config(file, os.environ)
    principal = Principal("command-line", _user())
    async with AsyncExitStack() as closing:
        audit: Audit | None = None
        if note is not None and config.journal is not None:
            # Opened first: a key that is made but not recorded would be worse than none.
            journal = await Journal.open(
                config.journal.folder,
                cluster=config.cluster_name,
                host=HOST,
                settings=DynamicSettings(),
                metrics=Metrics(),
            )
            closing.push_async_callback(journal.close)
            audit = Audit(journal.audit(), host=HOST)
        store = await open_store(config.store)
        closing.push_async_callback(store.close)
        report = await act(KeyAdmin(store.history, by="/".join(principal)))
        if audit is not None and note is not None:
            name, request = note
            audit.record(Decided(principal, HOST_METHODS[name], "", True, "in the store itself", "", request))
        return report


def _with_common(command: click.Command) -> click.Command:
    command.params += common_options()
    return command


@key.command("create")
@click.option("--namespace", metavar="NAME", help="The namespace for which the key is valid.")
@click.option("--system", "is_system", is_flag=True, help="The key is valid for the whole system.")
@click.option("--cluster", metavar="NAME", help="Name of the remote cluster that will use the key.")
@click.option("--role", type=click.Choice(ROLES), help="What the holder may do.")
@click.option("--name", default="", metavar="TEXT", help="User of the key, for lists and the audit.")
@click.option(
    "--expires",
    "expires_s",
    default=f"{DAYS_DEFAULT}d",
    show_default=True,
    metavar="TIME",
    callback=_read_expiry,
    help='Time until the key expires, like "90d" or "12h", or "never".',
)
@_config_option
def create(
    *,
    namespace: str | None,
    is_system: bool,
    cluster: str | None,
    role: str | None,
    name: str,
    expires_s: float,
    file: Path | None,
    address: str | None,
    timeout_s: float | None,
    output: str,
) -> None:
    """Create a key and print it. It is printed only now: only its hash is stored.

    \b
    fairlead admin key create --namespace orders --role worker --name order-workers
    fairlead admin key create --system --role admin --config fairlead.yaml
    fairlead admin key create --cluster frankfurt --expires never
    """
    if sum((namespace is not None, is_system, cluster is not None)) != 1:
        raise click.UsageError("give one of --namespace, --system and --cluster")
    if (role is None) is (cluster is None):
        raise click.UsageError("give --role with --namespace or --system, and not with --cluster")
    request = CreateKeyRequest(
        name, SYSTEM_NAMESPACE if is_system else namespace or "", role or "", cluster or "", expires_s
    )

    async def in_cluster(asked: Cluster) -> Report:
        return _created(await asked.ask(CREATE_KEY, request))

    async def in_store(keys: KeyAdmin) -> Report:
        return _created(await keys.create(request))

    if file is None:
        report = _run(in_cluster, address, timeout_s)
    else:
        report = asyncio.run(_in_store(file, in_store, (CREATE_KEY.name, request)))
    if Output(output) is Output.TABLE:
        # Alone on its line, so that it can be copied or piped; its description goes to standard error.
        click.echo(report.summary, err=True)
        click.echo(str(report.parameters["key"]))
    else:
        show(report, output=Output(output), plot=None)


def _created(answer: CreateKeyResponse) -> Report:
    summary = (
        f"key {answer.id} is valid on all hosts in {REFRESH_S:g} s. Keep it: it can't be shown again. Give it to SDKs "
        "as api_key, to the temporal command as --api-key, to fairlead admin as FAIRLEAD_API_KEY."
    )
    return Report("key", summary, {"id": answer.id, "key": answer.key}, [])


@key.command("list")
@_config_option
def list_keys(*, file: Path | None, address: str | None, timeout_s: float | None, output: str) -> None:
    """List all keys, without their secrets. Keys that expired or were revoked more than 30 days ago are left out."""

    async def in_cluster(asked: Cluster) -> Report:
        return keys_report((await asked.ask(LIST_KEYS, ListKeysRequest())).keys)

    async def in_store(keys: KeyAdmin) -> Report:
        return keys_report((await keys.list(ListKeysRequest())).keys)

    report = _run(in_cluster, address, timeout_s) if file is None else asyncio.run(_in_store(file, in_store, None))
    show(report, output=Output(output), plot=None)


def keys_report(keys: list[ListedKey]) -> Report:
    """Return a report on keys."""
    rows: list[tuple[Cell, ...]] = []
    now_s = time.time()
    for each in keys:
        where, role = describe(
            StoredKey(id=each.id, digest=b"", name=each.name, permissions=each.permissions, cluster=each.cluster)
        )
        state = "revoked" if each.revoked_s else "expired" if 0 < each.expires_s <= now_s else "valid"
        rows.append(
            (each.id, each.name, where, role, state, _when(each.expires_s, "never"), _when(each.last_used_s, "never"))
        )
    valid = sum(1 for row in rows if row[4] == "valid")
    columns = ("id", "name", "valid_for", "role", "state", "expires", "last_used")
    return Report("keys", f"{counted(len(rows), 'key')}, {valid} valid", {}, [Table("keys", "", columns, rows)])


@key.command("revoke")
@click.argument("key_id", metavar="ID")
@_config_option
def revoke(*, key_id: str, file: Path | None, address: str | None, timeout_s: float | None, output: str) -> None:
    """Revoke a key for good, by the id that `key list` shows."""
    request = RevokeKeyRequest(key_id)

    async def in_cluster(asked: Cluster) -> Report:
        return _revoked((await asked.ask(REVOKE_KEY, request)).id)

    async def in_store(keys: KeyAdmin) -> Report:
        return _revoked((await keys.revoke(request)).id)

    if file is None:
        report = _run(in_cluster, address, timeout_s)
    else:
        report = asyncio.run(_in_store(file, in_store, (REVOKE_KEY.name, request)))
    show(report, output=Output(output), plot=None)


def _revoked(key_id: str) -> Report:
    return Report("revoked", f"key {key_id} is revoked, on all hosts in {REFRESH_S:g} s", {"id": key_id}, [])


def _when(time_s: float, otherwise: str) -> Cell:
    if not time_s:
        return DualCell(otherwise, None)
    moment = datetime.fromtimestamp(time_s, UTC)
    return DualCell(moment.strftime("%Y-%m-%d %H:%M"), moment.isoformat())


for _command in (create, list_keys, revoke):
    _with_common(_command)
