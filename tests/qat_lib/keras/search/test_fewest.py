"""The smallest set, against trying all of them."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from qat_lib.keras.search.candidates import Floats
from qat_lib.keras.search.fewest import Fewest, FewestSearch

LAYERS = tuple("abcdefg")


class Problem:
    """Costs of layers in INT8, some of them together, and a bound on their sum."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.costs = {layer: random.random() ** 3 for layer in LAYERS}
        self.pairs = {pair: random.choice((0, 0, 0.3)) for pair in combinations(LAYERS, 2)}
        self.bound = random.uniform(0.1, 1.0)
        self.tried: list[Floats] = []

    def cost(self, floats: Floats) -> float:
        left = [layer for layer in LAYERS if layer not in floats]
        together = [self.pairs[pair] for pair in combinations(left, 2)]
        return sum(self.costs[layer] for layer in left) + sum(together)

    def fits(self, floats: Floats) -> bool:
        self.tried.append(floats)
        return self.cost(floats) <= self.bound

    def search(self, budget: int) -> Fewest:
        return FewestSearch(
            layers=LAYERS,
            effect=self.cost,
            fits=self.fits,
            affordable=lambda: budget - len(self.tried),
        ).run()

    def least(self) -> int:
        for size in range(len(LAYERS) + 1):
            if any(self.cost(frozenset(each)) <= self.bound for each in combinations(LAYERS, size)):
                return size
        raise AssertionError


@pytest.mark.parametrize("seed", range(40))
def test_run_finds_the_smallest_set(seed: int) -> None:
    problem = Problem(seed)
    found = problem.search(budget=400)
    assert found.floats is not None
    assert problem.cost(found.floats) <= problem.bound
    assert len(found.floats) == problem.least()
    assert found.proven


def test_run_keeps_to_its_budget() -> None:
    problem = Problem(3)
    found = problem.search(budget=6)
    assert found.floats is not None
    assert problem.cost(found.floats) <= problem.bound
    assert not found.proven
    assert len(problem.tried) <= 12


def test_run_tries_nothing_more_where_all_layers_fit() -> None:
    problem = Problem(0)
    problem.bound = 100.0
    assert problem.search(budget=9) == Fewest(floats=frozenset(), proven=True)
    assert problem.tried == [frozenset()]


def test_run_says_that_no_set_fits() -> None:
    problem = Problem(0)
    problem.bound = -1.0
    assert problem.search(budget=99) == Fewest(floats=None, proven=False)
