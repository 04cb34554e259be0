from collections.abc import Iterator

from fairlead.core.fairness.sketch import NEVER, PassSketch, cells_of

KEYS_MAX = 100_000
# Number of known keys that are checked for idleness when a new key comes, so that no single call checks all of them.
# With four, the idle keys that are kept are at most a third of the busy keys. More keys are checked when there is no
# room left.
_SWEPT_A_NEW_KEY = 4
_SWEPT_WHEN_FULL = 10


class PassCounter:
    """Chooses the pass of each task so that the fairness keys are spaced by their weights.

    pass = max(base, the key's last pass + stride). The base is the pass that dispatch has reached, and never goes back;
    a new key starts there. When the base has reached a key's last pass + the stride of that task, the key is idle: it
    has neither credit nor debt, and counts as new. So idle keys can be forgotten at any time without changing any later
    pass, and the counter holds about as many keys as the backlog has, not all keys ever seen.

    Beyond `keys_max` keys, further keys share a sketch, which may give them passes that are too late, but never too
    early. When the base is above all passes in the sketch, the counter is exact again.
    """

    __slots__ = (
        "_base",
        "_keys_max",
        "_known",
        "_sketch",
        "_sketch_idle_from_pass",
        "_sweep_order",
        "_sweep_position",
    )

    def __init__(self, *, base: int = 0, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._base = base
        # The last pass of each key, and the first pass at which the key is idle.
        self._known: dict[str, tuple[int, int]] = {}
        # The known keys in no particular order, and the index of the next one to check.
        self._sweep_order: list[str] = []
        self._sweep_position = 0
        self._sketch: PassSketch | None = None
        self._sketch_idle_from_pass = 0

    @property
    def keys(self) -> int:
        """Number of keys that are counted individually."""
        return len(self._known)

    @property
    def is_exact(self) -> bool:
        """Whether every key that is not idle is counted individually."""
        return self._sketch_idle_from_pass <= self._base

    def next_pass(self, key: str, *, stride: int, base: int) -> int:
        """Choose and record the pass of a new task of `key`."""
        base = self._base = max(base, self._base)
        known = self._known.get(key)
        if known is not None:
            last_pass, idle_from_pass = known
            chosen = base if idle_from_pass <= base else max(base, last_pass + stride)
            self._known[key] = (chosen, chosen + stride)
            return chosen
        last_pass = self._sketched(key)
        chosen = base if last_pass == NEVER else max(base, last_pass + stride)
        self._remember_new(key, chosen, stride)
        return chosen

    def waiting(self, served_pass: int) -> Iterator[tuple[str, int, int]]:
        """Yield key, distance and stride of each individually counted key whose last pass is at least `served_pass`."""
        for key, (last_pass, idle_from_pass) in self._known.items():
            if last_pass >= served_pass:
                yield key, last_pass - served_pass, idle_from_pass - last_pass

    def give_back(self, key: str, *, pass_number: int, stride: int) -> None:
        """Undo `next_pass` for a task that was not written, unless the key has a later pass by now."""
        if self._known.get(key) == (pass_number, pass_number + stride):
            self._known[key] = (pass_number - stride, pass_number)

    def restore(self, key: str, *, last_pass: int, stride: int) -> None:
        """Set a key's last pass from its stored tasks: a new owner restores the counter from the backlog.

        Keys with stored tasks are not idle, so no key is checked for idleness.
        """
        known = self._known.get(key)
        if known is None:
            # A key that goes into the sketch has at least the sketch's pass anyway.
            is_counted = len(self._known) < self._keys_max
            self._remember(key, max(last_pass, self._sketched(key)) if is_counted else last_pass, stride)
        elif known[0] < last_pass:
            self._known[key] = (last_pass, last_pass + stride)

    def _sketched(self, key: str) -> int:
        if self._sketch is None or self.is_exact:
            return NEVER
        return self._sketch.last_pass(cells_of(key))

    def _remember_new(self, key: str, last_pass: int, stride: int) -> None:
        self._sweep(_SWEPT_A_NEW_KEY if len(self._known) < self._keys_max else _SWEPT_WHEN_FULL)
        self._remember(key, last_pass, stride)

    def _remember(self, key: str, last_pass: int, stride: int) -> None:
        if len(self._known) < self._keys_max:
            self._known[key] = (last_pass, last_pass + stride)
            self._sweep_order.append(key)
            return
        if self._sketch is None:
            self._sketch = PassSketch()
        self._sketch.remember(cells_of(key), last_pass)
        self._sketch_idle_from_pass = max(self._sketch_idle_from_pass, last_pass + stride)

    def _sweep(self, keys: int) -> None:
        """Check the next few keys, and forget the idle ones."""
        order = self._sweep_order
        for _ in range(min(keys, len(order))):
            if self._sweep_position >= len(order):
                self._sweep_position = 0
            key = order[self._sweep_position]
            if self._known[key][1] > self._base:
                self._sweep_position += 1
                continue
            del self._known[key]
            last = order.pop()
            if last != key:
                order[self._sweep_position] = last
