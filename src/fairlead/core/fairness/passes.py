from collections.abc import Iterator

from fairlead.core.fairness.sketch import NEVER, PassSketch, places_of

KEYS_MAX = 100_000
# How many known keys are looked at, for idle ones, when a new key comes. The more, the fewer idle keys are kept: with
# four, at most a third of the others; and no single call pays for all of them. More when there is no room left.
_SWEPT_A_NEW_KEY = 4
_SWEPT_WHEN_FULL = 10


class PassCounter:
    """Gives each task of a key the pass that spaces the keys out by their weights.

    pass = max(base, the key's last pass + stride). The base is how far the service has come, and never goes back; a
    key that was not seen before joins there. When the base has reached a key's last pass + the stride of that task,
    the key has nothing left to wait for: it is idle, has saved nothing up and owes nothing, and counts as not seen.
    So idle keys can be forgotten at any time, which changes no pass that is ever given, and the counter holds about
    as many keys as the backlog, not all keys ever seen.

    Past `keys_max` keys at once the next ones share a sketch, which may give them later passes than they deserve but
    never earlier ones; when their time has passed the counter is exact again.
    """

    def __init__(self, *, base: int = 0, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._base = base
        # For each key its last pass, and the pass from which on it is idle.
        self._known: dict[str, tuple[int, int]] = {}
        # The known keys in no particular order, and the next of them to be looked at.
        self._sweep_order: list[str] = []
        self._sweep_place = 0
        self._sketch: PassSketch | None = None
        self._sketch_idle_from_pass = 0

    @property
    def keys(self) -> int:
        """How many keys are remembered one by one."""
        return len(self._known)

    @property
    def is_exact(self) -> bool:
        """Whether every key that is not idle is remembered one by one."""
        return self._sketch_idle_from_pass <= self._base

    def next_pass(self, key: str, *, stride: int, base: int) -> int:
        """Choose the pass of a new task of `key`, and remember it."""
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
        """Each key that is remembered by itself and not served yet: how far behind its last task is, and its stride."""
        for key, (last_pass, idle_from_pass) in self._known.items():
            if last_pass >= served_pass:
                yield key, last_pass - served_pass, idle_from_pass - last_pass

    def give_back(self, key: str, *, pass_number: int, stride: int) -> None:
        """Undo `next_pass` for a task that was not written, unless the key has been given later passes since."""
        if self._known.get(key) == (pass_number, pass_number + stride):
            self._known[key] = (pass_number - stride, pass_number)

    def restore(self, key: str, *, last_pass: int, stride: int) -> None:
        """Take over what a stored task says about its key: a new owner reads the counters out of the backlog."""
        known = self._known.get(key)
        if known is None:
            self._remember_new(key, max(last_pass, self._sketched(key)), stride)
        elif known[0] < last_pass:
            self._known[key] = (last_pass, last_pass + stride)

    def _sketched(self, key: str) -> int:
        if self._sketch is None or self.is_exact:
            return NEVER
        return self._sketch.last_pass(places_of(key))

    def _remember_new(self, key: str, last_pass: int, stride: int) -> None:
        self._sweep(_SWEPT_A_NEW_KEY if len(self._known) < self._keys_max else _SWEPT_WHEN_FULL)
        if len(self._known) < self._keys_max:
            self._known[key] = (last_pass, last_pass + stride)
            self._sweep_order.append(key)
            return
        if self._sketch is None:
            self._sketch = PassSketch()
        self._sketch.remember(places_of(key), last_pass)
        self._sketch_idle_from_pass = max(self._sketch_idle_from_pass, last_pass + stride)

    def _sweep(self, keys: int) -> None:
        """Forget the idle among the next few keys."""
        order = self._sweep_order
        for _ in range(min(keys, len(order))):
            if self._sweep_place >= len(order):
                self._sweep_place = 0
            key = order[self._sweep_place]
            if self._known[key][1] > self._base:
                self._sweep_place += 1
                continue
            del self._known[key]
            last = order.pop()
            if last != key:
                order[self._sweep_place] = last
