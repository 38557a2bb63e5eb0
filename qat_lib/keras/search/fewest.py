"""The fewest layers in float within a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from qat_lib.keras.search.candidates import Floats

_BEAM = 8
"""Layers that a step of the greedy order chooses among."""


@dataclass(frozen=True, kw_only=True)
class Fewest:
    """The smallest set that was found.

    Attributes:
        floats: layers in float; None if no set is within the bound.
        proven: whether all sets with one layer fewer were tried.
    """

    floats: Floats | None
    proven: bool


@dataclass(frozen=True, kw_only=True)
class FewestSearch:
    """Searches the smallest set of layers in float.

    A greedy order by the predicted effect gives the first set that is within the bound; what it
    does not need is taken out again; then smaller sets are tried, all of them where the budget
    allows.

    Attributes:
        layers: the layers to choose from.
        effect: gives the predicted effect of a set; smaller is better.
        fits: whether a set is within the bound; exact, and costly.
        affordable: how many more sets may be tried.
    """

    layers: Sequence[str]
    effect: Callable[[Floats], float]
    fits: Callable[[Floats], bool]
    affordable: Callable[[], int]

    def run(self) -> Fewest:
        """Return the smallest set."""
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
        """Return the layers, the most useful in float first.

        Each is the best of some candidates, given those before it.
        """
        alone = {layer: self.effect(frozenset((layer,))) for layer in self.layers}
        left = sorted(alone, key=alone.__getitem__)
        order: list[str] = []
        while len(left) > 1 and len(order) < _BEAM:
            effects = {}
            for layer in left[:_BEAM]:
                effects[layer] = self.effect(frozenset((*order, layer)))
            order.append(min(effects, key=effects.__getitem__))
            left.remove(order[-1])
        return order + left

    def _shortest(self, order: Sequence[str]) -> Floats | None:
        """Return the shortest beginning of the order that fits, by bisection."""
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
        """Return a set without the layers that it does not need."""
        for layer in reversed(order):
            if layer in found and len(found) > 1 and self.affordable() > 0:
                without = found - {layer}
                found = without if self.fits(without) else found
        return found

    def _improved(self, found: Floats, order: Sequence[str]) -> Fewest:
        """Try smaller sets, the most promising first."""
        while len(found) > 1:
            size = len(found) - 1
            smaller = self._first_that_fits(self._sets(order, size))
            if smaller is None:
                tried_all = self.affordable() > 0 and comb(len(order), size) < _MOST
                return Fewest(floats=found, proven=tried_all)
            found = smaller
        return Fewest(floats=found, proven=True)

    def _sets(self, order: Sequence[str], size: int) -> Iterable[Floats]:
        """Return the sets of a size, those of early layers first."""
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


_MOST = 4096
"""Sets of a size that are listed at most."""
