"""The addresses of remote clusters to which this cluster may connect: `cluster.allowedAddresses`."""

import fnmatch
import ipaddress
from collections.abc import Sequence
from contextlib import suppress


def is_address_allowed(address: str, patterns: Sequence[str]) -> bool:
    """Whether HOST:PORT matches one of the patterns; every address does if there are none."""
    if not patterns:
        return True
    address = address.lower()
    host = address.rpartition(":")[0].strip("[]")
    for pattern in patterns:
        if fnmatch.fnmatchcase(address, pattern) or fnmatch.fnmatchcase(host, pattern):
            return True
        with suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(pattern):
                return True
    return False
