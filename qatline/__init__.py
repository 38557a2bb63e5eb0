"""qatline: the pipeline from a trained model to a checked INT8 engine.

The folders ``components`` and ``pipelines`` lie beside this one; they are imported under this name,
so that a package of yours may have theirs.
"""
