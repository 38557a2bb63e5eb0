"""Client of a served model: raw data in, named answers out.

A package of ``qatline package`` contains a copy of this folder. It needs NumPy, and Pillow for image
files, but nothing else of qatline.
"""

from .client import Client, ServerError

__all__ = ["Client", "ServerError"]
