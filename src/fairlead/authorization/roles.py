"""Roles, with Temporal's words and numbers."""

from enum import IntFlag
from typing import Final

# Temporal's pseudo-namespace: a role in it is a role in the whole system.
SYSTEM_NAMESPACE: Final = "temporal-system"


class Role(IntFlag):
    """The rights of a caller. A higher number includes the lower ones, but the methods of WORKER belong to no other
    role.
    """

    UNDEFINED = 0
    WORKER = 1
    READER = 2
    WRITER = 4
    ADMIN = 8


_WORDS: Final = {
    "worker": Role.WORKER,
    "read": Role.READER,
    "reader": Role.READER,
    "write": Role.WRITER,
    "writer": Role.WRITER,
    "admin": Role.ADMIN,
}


def role_of(word: str) -> Role:
    """The role that a word stands for, in any case of letters; UNDEFINED for an unknown word."""
    return _WORDS.get(word.lower(), Role.UNDEFINED)


def role_name(role: Role) -> str:
    """The names of the roles in a set, for people."""
    return "+".join(each.name.lower() for each in Role if each and each in role and each.name) or "none"
