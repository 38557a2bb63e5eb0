"""Find the places that can be mutated, and sample them."""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

Position = tuple[int, int]

# Kinds of parso's nodes that no operator changes; leaving them out halves the time of the search.
_NEVER_MUTATED = frozenset({"name", "newline", "string", "fstring_string", "endmarker"})


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one module.

    Attributes:
        module: path of the module from the root of the repository.
        operator: Cosmic Ray's name of the kind of change.
        occurrence: which place of the module the operator changes.
        identity: SHA-256 that stays the same while other code of the module changes.
        line: number of the line.
    """

    module: str
    operator: str
    occurrence: int
    identity: str
    line: int

    def apply(self, source: str) -> str:
        """Return the mutated source of the module."""
        mutated = mutate_code(source, get_operator(self.operator)(), self.occurrence)
        if mutated is None:
            raise ValueError(
                f"{self.module}: expected occurrence {self.occurrence} of {self.operator}; it has fewer."
            )
        return str(mutated)

    def diff(self, source: str) -> str:
        """Return the change as a unified diff of one line of context."""
        lines = difflib.unified_diff(
            source.splitlines(),
            self.apply(source).splitlines(),
            self.module,
            self.module,
            lineterm="",
            n=1,
        )
        return "\n".join(lines)

    def changed_lines(self, source: str) -> tuple[str, str]:
        """Return the removed and the added text, without indentation."""
        lines = self.diff(source).splitlines()[2:]
        texts = (
            "\n".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
        )
        before, after = texts
        return before, after


def find_mutants(root: Path, modules: Iterable[str]) -> list[Mutant]:
    """Return one mutant for each place of the modules."""
    return [
        mutant
        for module in modules
        for mutant in _of_module(module, (root / module).read_text(encoding="utf-8"))
    ]


def draw(mutants: Iterable[Mutant], *, seed: int) -> list[Mutant]:
    """Return the mutants in a seeded random order.

    Every prefix is a uniform sample. A mutant keeps its rank while other code changes, so that a
    later run with the same seed meets the same mutants again.
    """
    return sorted(mutants, key=lambda mutant: _digest(str(seed), mutant.identity))


def _of_module(module: str, source: str) -> Iterator[Mutant]:
    """Yield one mutant per place.

    An operator sign has many replacements: the one with the least hash is taken.
    """
    places: dict[tuple[Position, Position, str], list[Mutant]] = {}
    lines, skipped = source.splitlines(), list(_spans_without_behaviour(ast.parse(source)))
    nodes = [node for node in ast_nodes(get_ast(source)) if node.type not in _NEVER_MUTATED]
    seen: Counter[tuple[str, str]] = Counter()
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments():
            continue  # the operators that put variables in each other's place need a list of names
        positions = (span for node in nodes for span in operator().mutation_positions(node))
        for occurrence, (start, end) in enumerate(positions):
            text = lines[start[0] - 1].strip()
            seen[name, text] += 1
            if any(first <= start and end <= last for first, last in skipped):
                continue
            if name == "core/ExceptionReplacer" and "." in lines[start[0] - 1][start[1] : end[1]]:
                continue  # Cosmic Ray fails on a dotted name
            identity = _digest(module, name, text, str(seen[name, text]))
            mutant = Mutant(
                module=module,
                operator=name,
                occurrence=occurrence,
                identity=identity,
                line=start[0],
            )
            places.setdefault((start, end, name.split("_")[0]), []).append(mutant)
    for variants in places.values():
        yield min(variants, key=lambda mutant: mutant.identity)


def _spans_without_behaviour(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    """Yield places that tests can't check but the type checker does.

    They are annotations, dataclass options and imports for types.
    """
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.arg | ast.AnnAssign):
            found = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            found = [node.returns]
            yield from _keyword_marker(node.args)
        elif isinstance(node, ast.ClassDef):
            found = [
                each for each in node.decorator_list if ast.unparse(each).startswith("dataclass")
            ]
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            found = [node.test]
        for each in filter(None, found):
            assert each.end_lineno is not None
            assert each.end_col_offset is not None
            yield (each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset)


def _keyword_marker(arguments: ast.arguments) -> Iterator[tuple[Position, Position]]:
    """Yield the place of a lone ``*`` among parameters.

    Cosmic Ray takes it for a product.
    """
    if arguments.kwonlyargs and arguments.vararg is None:
        first = arguments.kwonlyargs[0]
        before = (arguments.posonlyargs + arguments.args)[-1:]
        start = (before[0].lineno, before[0].col_offset) if before else (0, 0)
        yield start, (first.lineno, first.col_offset)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
