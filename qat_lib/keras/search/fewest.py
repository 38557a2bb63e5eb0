"""Search for the smallest set of float layers within a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from qat_lib.keras.search.candidates import Floats

# Number of candidates in each step of the greedy order.
_BEAM = 8


@dataclass(frozen=True, kw_only=True)
class Fewest:
    """The smallest set found.

    Attributes:
        floats: layers in float; None if no set is within the bound.
        proven: whether all sets with one layer fewer were tried.
    """

    floats: Floats | None
    proven: bool


@dataclass(frozen=True, kw_only=True)
class FewestSearch:
    """Searches for the smallest set of float layers.

    The search orders the layers greedily by predicted effect and takes the shortest prefix within
    the bound. It then removes unnecessary layers, and finally tries smaller sets, exhaustively if
    the budget allows.

    Attributes:
        layers: the layers to choose from.
        effect: returns the predicted effect of a set; smaller is better.
        fits: returns whether a set is within the bound; exact but expensive.
        affordable: returns the remaining number of sets to try.
    """

    layers: Sequence[str]
    effect: Callable[[Floats], float]
    fits: Callable[[Floats], bool]
    affordable: Callable[[], int]

    def run(self) -> Fewest:
        """Return the smallest set found."""
        none: Floats = frozenset()
        if self.fits(none):
            return Fewest(floats=none, proven=True)
        order = self._order()
        found = self._shortest(order)
        if found is None:
            return Fewest(floats=None, proven=False)
        found = self._pruned(found, order)
        return self._improved(found, order)

    def _order(self) -> list[str]:
        """Return the layers by decreasing benefit of running in float.

        Each step picks the best of ``_BEAM`` candidates, given the layers picked before.
        """
        alone = {layer: self.effect(frozenset((layer,))) for layer in self.layers}
        left = sorted(alone, key=alone.__getitem__)
        order: list[str] = []
        # Effects of sets are not additive, so each step measures candidates given earlier picks.
        while len(left) > 1 and len(order) < _BEAM:
            effects = {}
            for layer in left[:_BEAM]:
                effects[layer] = self.effect(frozenset((*order, layer)))
            order.append(min(effects, key=effects.__getitem__))
            left.remove(order[-1])
        # The rest keeps the order of the single effects: each further step would cost _BEAM runs.
        return order + left

    def _shortest(self, order: Sequence[str]) -> Floats | None:
        """Return the shortest prefix of the order within the bound, by bisection."""
        # Invariant: the prefix of length ``low`` does not fit; after the doubling, ``high`` does.
        # It doubles first, since short prefixes usually suffice. Bisection assumes that a longer
        # prefix fits, too; the later phases handle most exceptions.
        low, high = 0, 1
        while high < len(order) and not self.fits(frozenset(order[:high])):
            low, high = high, min(2 * high, len(order))
        if not self.fits(frozenset(order[:high])):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(frozenset(order[:middle])):
                high = middle
            else:
                low = middle
        return frozenset(order[:high])

    def _pruned(self, found: Floats, order: Sequence[str]) -> Floats:
        """Return a set without unnecessary layers."""
        # The least useful layers first, as they are the likeliest to be unnecessary.
        for layer in reversed(order):
            if layer in found and len(found) > 1 and self.affordable() > 0:
                without = found - {layer}
                found = without if self.fits(without) else found
        return found

    def _improved(self, found: Floats, order: Sequence[str]) -> Fewest:
        """Return the result after trying smaller sets, the most promising first."""
        while len(found) > 1:
            size = len(found) - 1
            smaller = self._first_that_fits(self._sets(order, size))
            if smaller is None:
                # None also means an exhausted budget, or a list cut to the first layers.
                tried_all = self.affordable() > 0 and comb(len(order), size) < _MOST
                return Fewest(floats=found, proven=tried_all)
            found = smaller
        return Fewest(floats=found, proven=True)

    def _sets(self, order: Sequence[str], size: int) -> Iterable[Floats]:
        """Return the sets of a given size, those of early layers first."""
        # Too many sets to enumerate: try only those of the most useful layers.
        if comb(len(order), size) >= _MOST:
            order = order[:_BEAM]
        rank = {layer: place for place, layer in enumerate(order)}
        sets = map(frozenset, combinations(order, size))
        return sorted(sets, key=lambda each: sum(map(rank.__getitem__, each)))

    def _first_that_fits(self, sets: Iterable[Floats]) -> Floats | None:
        for each in sets:
            if self.affordable() <= 0:
                return None
            if self.fits(each):
                return each
        return None


# Maximum number of sets of one size to enumerate.
_MOST = 4096
