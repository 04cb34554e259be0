"""The only code that admits or refuses a call, for every port and every service."""

import hmac
import time
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any, Final, NamedTuple, Protocol

from temporalio.api.errordetails.v1 import PermissionDeniedFailure

from fairlead.api.error_details import packed
from fairlead.api.errors import ApiError, PermissionDenied
from fairlead.authorization.api_keys import PREFIX, ApiKeys
from fairlead.authorization.authorizer import AuthorizationTarget, Authorizer, Decision
from fairlead.authorization.certificates import CertificateClaims
from fairlead.authorization.claims import SUBJECT_CHARACTERS_MAX, AuthInfo, ClaimMapper, Claims, Denied, Principal
from fairlead.authorization.json_web_tokens import bearer
from fairlead.authorization.methods import Access, MethodAccess
from fairlead.authorization.reasons import current_reason
from fairlead.authorization.roles import Role
from fairlead.core.errors import FairleadError
from fairlead.rpc.certificate import PeerCertificate
from fairlead.rpc.hosts.credentials import SECRET_HEADER
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic.authorization import EXPOSE_AUTHORIZER_ERRORS
from fairlead.settings.static.authorization import AuthorizationConfig
from fairlead.telemetry import SERVICE_ERRORS_AUTHORIZE_FAILED, SERVICE_ERRORS_UNAUTHORIZED, Metrics, get_log

MESSAGE: Final = "Request unauthorized."
NOBODY: Final = Principal("", "")
# A host of this cluster: it may call everything.
HOST: Final = Claims("host", Role.ADMIN, kind="host")

# The beginning of an authorization header with an API key; the scheme's letters may be of any case.
_BEARER_KEY: Final = f"bearer {PREFIX}"

_log = get_log("authorization")


class WithCredentials(Protocol):
    """The parts of a call that identify its caller: gRPC's `Call`, or that of another transport."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Headers, with names in lower case."""
        ...

    @property
    def certificate(self) -> PeerCertificate | None:
        """The verified certificate of the caller."""
        ...

    @property
    def peer(self) -> str:
        """Address of the caller."""
        ...


class Decided(NamedTuple):
    """A decision, for the audit."""

    principal: Principal
    method: MethodAccess
    namespace: str
    is_allowed: bool
    reason: str
    peer: str
    request: Any


class Gate:
    """Authenticates the caller, and admits the call or raises PERMISSION_DENIED.

    Every refusal has the same message, whether or not the namespace exists, so that callers can't guess names.
    """

    def __init__(
        self,
        config: AuthorizationConfig,
        *,
        authorizer: Authorizer,
        mapper: ClaimMapper | None,
        api_keys: ApiKeys | None,
        settings: DynamicSettings,
        metrics: Metrics,
        secret: str = "",
        is_host: Callable[[PeerCertificate], bool] = lambda _: False,
        on_decision: Callable[[Decided], None] | None = None,
    ) -> None:
        """`secret` is the secret of the cluster's hosts; `is_host` tells whether a certificate belongs to one of the
        hosts.

        `on_decision` gets every refusal, and every call of a method that is in the audit.
        """
        # Names of the headers with the token, and with extra data for claim mappers.
        self.header = config.header
        self.extras_header = config.extras_header
        self._audience = config.audience
        self._authorizer = authorizer
        self._mapper = mapper
        self._api_keys = api_keys
        self._certificates = CertificateClaims(config.certificates)
        self._secret = secret.encode()
        self._is_host = is_host
        self._settings = settings
        self._metrics = metrics
        self._calls = metrics.calls("frontend", "Authorization")
        self._on_decision = on_decision

    async def admit(
        self, call: WithCredentials, method: MethodAccess, namespace: str = "", request: Any = None
    ) -> Claims | None:
        """Let a call in and return the caller's claims, None for a caller without any; or raise PERMISSION_DENIED."""
        claims = await self.identify(call, method)
        await self.check(call, claims, method, namespace, request)
        return claims

    async def identify(self, call: WithCredentials, method: MethodAccess) -> Claims | None:
        """Return the caller's claims; None for an open method without valid ones. Else raise PERMISSION_DENIED."""
        try:
            claims = await self._claims(call)
            if claims is None and not method.is_open:
                raise Denied("no credentials")
        except FairleadError as failure:
            if method.is_open:
                # Credentials don't matter here: an open method reveals nothing that needs one.
                return None
            if not isinstance(failure, Denied):
                raise
            raise self._refused(call, None, method, "", reason=str(failure)) from None
        return claims

    async def check(
        self, call: WithCredentials, claims: Claims | None, method: MethodAccess, namespace: str, request: Any = None
    ) -> None:
        """Raise PERMISSION_DENIED unless the caller may call the method in the namespace."""
        began_s = time.perf_counter()
        reason = ""
        try:
            decided = self._authorizer.authorize(claims, AuthorizationTarget(method, namespace, request))
            decision: Decision = decided if isinstance(decided, Decision) else await decided
            is_allowed, reason = decision.is_allowed is True, decision.reason
        except FairleadError as failure:
            is_allowed, reason = False, str(failure)
        except Exception as failure:  # noqa: BLE001 - a fault of a user's authorizer must not let anybody in
            is_allowed, reason = False, f"the authorizer failed: {type(failure).__name__}: {failure}"
            self._metrics.count(SERVICE_ERRORS_AUTHORIZE_FAILED, method.name)
            _log.error("authorizer failed", method=method.api, exc_info=failure)
        self._calls.answered(time.perf_counter() - began_s)
        if not is_allowed:
            raise self._refused(call, claims, method, namespace, reason=reason, request=request)
        self.note(call, claims, method, namespace, request)

    async def allows(self, call: WithCredentials, method: MethodAccess, namespace: str = "") -> bool:
        """Whether the caller may call the method; counts, logs and audits nothing.

        Web pages use it to leave out actions that their viewer may not take.
        """
        try:
            claims = await self._claims(call)
            decided = self._authorizer.authorize(claims, AuthorizationTarget(method, namespace))
            decision: Decision = decided if isinstance(decided, Decision) else await decided
        except Exception:  # noqa: BLE001 - also of a user's authorizer
            return False
        return decision.is_allowed is True

    async def viewer(self, call: WithCredentials) -> Claims | None:
        """The caller's claims, None for a caller without any; raises `Denied` for invalid ones, without a log line."""
        return await self._claims(call)

    def note(
        self, call: WithCredentials, claims: Claims | None, method: MethodAccess, namespace: str, request: Any = None
    ) -> None:
        """Report an allowed call to the audit, if it belongs there.

        The call belongs there because of its method, or of its caller's role, or because it is a change by an action of
        the console. Nothing that the caller sends puts it there.
        """
        if self._on_decision is None:
            return
        reason = current_reason()
        is_action = reason is not None and method.access is not Access.READ
        if method.is_audited or is_action or (method.is_audited_for_admins and _is_admin(claims, namespace)):
            principal = NOBODY if claims is None else claims.principal
            self._on_decision(Decided(principal, method, namespace, True, reason or "", call.peer, request))  # noqa: FBT003

    def refuse(
        self, call: WithCredentials, claims: Claims | None, method: MethodAccess, namespace: str, reason: str
    ) -> ApiError:
        """Return the error for a call that a rule other than the authorizer's forbids; count and audit it like every
        refusal.
        """
        return self._refused(call, claims, method, namespace, reason=reason)

    async def _claims(self, call: WithCredentials) -> Claims | None:
        metadata, certificate = call.metadata, call.certificate
        if self._secret and SECRET_HEADER in metadata:
            if hmac.compare_digest(metadata[SECRET_HEADER].encode(), self._secret):
                return HOST
            raise Denied("the secret of the cluster's hosts is wrong")
        token = metadata.get(self.header, "")
        if self._api_keys is not None and token[: len(_BEARER_KEY)].lower() == _BEARER_KEY:
            return self._api_keys.claims(bearer(token))
        if certificate is not None and not token:
            if self._is_host(certificate):
                return HOST
            claims = self._certificates.claims(certificate)
            if claims is not None:
                return claims
        if self._mapper is None:
            if token:
                raise Denied("the authorization header has no API key, and no claim mapper is configured")
            return None
        info = AuthInfo(token, metadata.get(self.extras_header, ""), certificate, self._audience)
        try:
            mapped = self._mapper.claims(info)
            found: Claims | None = await mapped if isawaitable(mapped) else mapped
        except FairleadError:
            raise
        except Exception as failure:  # noqa: BLE001 - a fault of a user's claim mapper must not let anybody in
            self._metrics.count(SERVICE_ERRORS_AUTHORIZE_FAILED, "ClaimMapper")
            _log.error("claim mapper failed", exc_info=failure)
            raise Denied(f"the claim mapper failed: {type(failure).__name__}") from None
        if found is not None and not is_name(found.subject):
            raise Denied(f"the caller's name is not of at most {SUBJECT_CHARACTERS_MAX} printable characters")
        return found

    def _refused(
        self,
        call: WithCredentials,
        claims: Claims | None,
        method: MethodAccess,
        namespace: str,
        *,
        reason: str,
        request: Any = None,
    ) -> ApiError:
        principal = NOBODY if claims is None else claims.principal
        self._metrics.count(SERVICE_ERRORS_UNAUTHORIZED, method.name)
        _log.warning(
            "call refused",
            method=method.api,
            namespace=namespace,
            principal=f"{principal.kind}/{principal.name}",
            peer=call.peer,
            reason=reason,
        )
        if self._on_decision is not None:
            self._on_decision(Decided(principal, method, namespace, False, reason, call.peer, request))  # noqa: FBT003
        return request_unauthorized(reason if self._settings.get(EXPOSE_AUTHORIZER_ERRORS) else "")


def is_name(subject: str) -> bool:
    """Whether the name of a caller may be written into events and the audit."""
    return len(subject) <= SUBJECT_CHARACTERS_MAX and subject.isprintable()


def _is_admin(claims: Claims | None, namespace: str) -> bool:
    return claims is not None and Role.ADMIN in claims.role_in(namespace)


def request_unauthorized(reason: str = "") -> ApiError:
    """PERMISSION_DENIED with Temporal's message and detail."""
    return PermissionDenied(MESSAGE, packed(PermissionDeniedFailure(reason=reason)))
