"""Catalogue of codes: all rules declared in the modules of ``qat_lib.analysis.rules``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType

from qat_lib.analysis.findings import Rule
from qat_lib.analysis.rules import rule_modules


def collect_rules(modules: Iterable[ModuleType]) -> dict[str, Rule]:
    """Return the rules declared in ``modules``, sorted by code.

    Raises:
        ValueError: a code is declared twice.
    """
    found: dict[str, Rule] = {}
    for module in modules:
        for rule in vars(module).values():
            # Modules import rules of others: only a second object with the same code is an error.
            if isinstance(rule, Rule) and found.setdefault(rule.code, rule) is not rule:
                raise ValueError(
                    f"Expected each code to be declared once. Received {rule.code} again in "
                    f"{module.__name__}; the first is {found[rule.code].title!r}."
                )
    return dict(sorted(found.items()))


#: The rule of each code.
CATALOG: Mapping[str, Rule] = collect_rules(rule_modules())
