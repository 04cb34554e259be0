import heapq
from typing import NamedTuple

from fairlead.core.fairness.sketch import NEVER, PassSketch

KEYS_MAX = 100_000
# Twice what steady work needs (one key forgotten and one looked at again for each pass given), so that a counter
# that has fallen behind catches up, and no single call pays for all of it.
_FORGOTTEN_A_CALL_MAX = 4


class _Known(NamedTuple):
    last_pass: int
    idle_from_pass: int


class PassCounter:
    """Gives each task of a key the pass that spaces the keys out by their weights.

    pass = max(base, the key's last pass + stride), where `base` is the pass up to which everything has been
    dispatched; should that go back for a moment, the highest that was ever given stands. A key whose last pass +
    stride has been reached by the base has nothing left to wait for: it is idle, has saved nothing up and owes
    nothing, and is as good as one never seen. So such keys are forgotten, which changes no pass that is ever given,
    and the counter holds the keys of the backlog, not all keys ever seen.

    Past `keys_max` keys at once the next ones share a sketch, which may give them later passes than they deserve but
    never earlier ones; when their time has passed the sketch is dropped and the counter is exact again.
    """

    def __init__(self, *, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._base = 0
        self._known: dict[str, _Known] = {}
        # One entry a known key, by a pass at which it may have become idle: never later than the true one.
        self._idle_order: list[tuple[int, str]] = []
        self._sketch: PassSketch | None = None
        self._sketch_idle_from_pass = 0

    @property
    def keys(self) -> int:
        """How many keys are remembered one by one."""
        return len(self._known)

    @property
    def is_exact(self) -> bool:
        """Whether every key is remembered one by one."""
        return self._sketch is None

    def next_pass(self, key: str, *, stride: int, base: int) -> int:
        """Choose the pass of a new task of `key`, and remember it."""
        # What was forgotten at one base would be missed at a lower one.
        base = self._base = max(self._base, base)
        self._forget_idle(base)
        known = self._known.get(key)
        if known is not None:
            chosen = base if known.idle_from_pass <= base else max(base, known.last_pass + stride)
        elif self._sketch is not None:
            last_pass = self._sketch.last_pass(key)
            chosen = base if last_pass == NEVER else max(base, last_pass + stride)
        else:
            chosen = base
        self._remember(key, chosen, stride, is_known=known is not None)
        return chosen

    def restore(self, key: str, *, last_pass: int, stride: int) -> None:
        """Take over what a stored task says about its key: a new owner reads the counters out of the backlog."""
        known = self._known.get(key)
        if known is None or known.last_pass < last_pass:
            self._remember(key, last_pass, stride, is_known=known is not None)

    def _remember(self, key: str, last_pass: int, stride: int, *, is_known: bool) -> None:
        idle_from_pass = last_pass + stride
        if is_known or len(self._known) < self._keys_max:
            self._known[key] = _Known(last_pass, idle_from_pass)
            if not is_known:
                heapq.heappush(self._idle_order, (idle_from_pass, key))
            return
        if self._sketch is None:
            self._sketch = PassSketch()
        self._sketch.remember(key, last_pass)
        self._sketch_idle_from_pass = max(self._sketch_idle_from_pass, idle_from_pass)

    def _forget_idle(self, base: int) -> None:
        order = self._idle_order
        for _ in range(_FORGOTTEN_A_CALL_MAX):
            if not order or order[0][0] > base:
                break
            key = order[0][1]
            idle_from_pass = self._known[key].idle_from_pass
            if idle_from_pass <= base:
                heapq.heappop(order)
                del self._known[key]
            else:
                heapq.heapreplace(order, (idle_from_pass, key))
        if self._sketch is not None and self._sketch_idle_from_pass <= base:
            self._sketch = None
