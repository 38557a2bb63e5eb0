"""Distributed training of one model by several processes."""
