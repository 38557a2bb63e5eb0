"""Comparison of many configs: trials, their order, and the best one."""
