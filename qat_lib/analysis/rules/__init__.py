"""The rules: each module looks at a graph and returns findings."""

from qat_lib.analysis.rules.parser import check_parser_rules

__all__ = ["check_parser_rules"]
