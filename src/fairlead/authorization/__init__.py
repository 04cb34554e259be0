"""Identifies callers by certificates, tokens and API keys, and decides by their roles which methods they may call."""

from fairlead.authorization.authorizer import AuthorizationTarget, Authorizer, Decision, DefaultAuthorizer
from fairlead.authorization.claims import AuthInfo, ClaimMapper, Claims, Denied, Principal
from fairlead.authorization.gate import Gate, request_unauthorized
from fairlead.authorization.methods import Access, MethodAccess, Scope, access_of
from fairlead.authorization.roles import SYSTEM_NAMESPACE, Role

__all__ = [
    "SYSTEM_NAMESPACE",
    "Access",
    "AuthInfo",
    "AuthorizationTarget",
    "Authorizer",
    "ClaimMapper",
    "Claims",
    "Decision",
    "DefaultAuthorizer",
    "Denied",
    "Gate",
    "MethodAccess",
    "Principal",
    "Role",
    "Scope",
    "access_of",
    "request_unauthorized",
]
