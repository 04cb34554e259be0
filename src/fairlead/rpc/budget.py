"""Rate limits for one peer, which its connections share: a burst, then a steady rate."""

import ipaddress
from collections import OrderedDict

# Share of the burst that a new connection has at least: other users of the same address must be able to work.
SHARE_MIN = 0.02
# Seconds in which an address recovers from a whole spent burst.
RECOVERY_S = 10.0
# Addresses whose spent budgets are remembered, the least recently used is dropped first.
ADDRESSES_MAX = 1_024
# Leading bits of an IPv6 address that identify a peer: one site owns all addresses of a /64 network.
_NETWORK_BITS = 64


class Budget:
    """Token bucket that refills over time."""

    __slots__ = ("_burst_max", "_per_s_max", "_spent_s", "_tokens")

    def __init__(self, *, burst_max: int, per_s_max: int) -> None:
        self._burst_max = burst_max
        self._per_s_max = per_s_max
        self._tokens = float(burst_max)
        self._spent_s = 0.0

    def spend(self, now_s: float, tokens: int = 1) -> bool:
        """Take tokens; False if there were not enough."""
        # The first refill counts from time 0; it adds nothing, since the bucket starts full.
        refill = (now_s - self._spent_s) * self._per_s_max
        self._spent_s = now_s
        self._tokens = min(self._burst_max, self._tokens + refill) - tokens
        return self._tokens >= 0

    def may_spend(self, now_s: float) -> bool:
        """Whether a token is left."""
        return min(self._burst_max, self._tokens + (now_s - self._spent_s) * self._per_s_max) >= 1

    def earn(self, tokens: int) -> None:
        """Give tokens back after a frame of a call: a flood of control frames has none."""
        self._tokens = min(self._burst_max, self._tokens + tokens)

    def begin_with(self, share: float, now_s: float) -> None:
        """Begin with a share of the burst, from 0 to 1."""
        self._tokens = self._burst_max * share
        self._spent_s = now_s

    def raise_to(self, *, burst_max: int, per_s_max: int) -> None:
        """Allow a larger burst and rate from now on; what is spent stays spent."""
        self._tokens += burst_max - self._burst_max
        self._burst_max, self._per_s_max = burst_max, per_s_max

    def spent_share(self, now_s: float) -> float:
        """Share of the burst, from 0 to 1, that is spent and not refilled."""
        tokens = self._tokens + (now_s - self._spent_s) * self._per_s_max
        return min(1.0, max(0.0, 1.0 - tokens / self._burst_max))


class SpentBudgets:
    """Keeps the spent budgets of each address after its connections close: a new connection gets only what is left.

    A peer that spends its burst, closes the connection and opens another one would otherwise have no limit at all.
    """

    def __init__(self) -> None:
        # By address: the spent share of a burst, and the time at which it was recorded.
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def share_left(self, address: str, now_s: float) -> float:
        """Share of its bursts with which a new connection of the address begins."""
        return max(SHARE_MIN, 1.0 - self._spent_share(address, now_s)) if self._spent else 1.0

    def add(self, address: str, share: float, now_s: float) -> None:
        """Count what a closed connection had spent."""
        if share <= 0:
            return
        self._spent[address] = (min(1.0, self._spent_share(address, now_s) + share), now_s)
        self._spent.move_to_end(address)
        if len(self._spent) > ADDRESSES_MAX:
            self._spent.popitem(last=False)

    def _spent_share(self, address: str, now_s: float) -> float:
        share, at_s = self._spent.get(address, (0.0, now_s))
        return max(0.0, share - (now_s - at_s) / RECOVERY_S)


def origin(peername: object) -> str:
    """The address whose connections share a budget: an IPv4 address, or the network of an IPv6 address."""
    host = str(peername[0]) if isinstance(peername, tuple) and peername else ""
    if ":" not in host:
        return host
    try:
        number = int(ipaddress.IPv6Address(host.partition("%")[0]))
    except ValueError:
        return host
    return f"{number >> (128 - _NETWORK_BITS):x}/{_NETWORK_BITS}"
