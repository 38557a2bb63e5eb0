"""Mutation testing: change one place of the library, run its tests.

The mutations are Cosmic Ray's. Its own runner starts Python anew for every mutant, and importing
TensorFlow takes longer than most tests here; mutmut forks after the tests have run once, which
TensorFlow's threads do not survive. So mutants run in forks of a process that has imported the
heavy packages and used none of them (``worker``).
"""
