"""The rules: each module looks at a graph or at the predicted engine and yields findings."""

from qat_lib.analysis.rules.parser import check_parser_rules

__all__ = ["check_parser_rules"]
