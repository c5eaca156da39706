"""The one door to obstore: whoever comes through it without the package is told what to install.

Everything of this package takes obstore from here. Not here: anything of our own.
"""

from __future__ import annotations

from graflow_ckpt.core.errors import PackageMissing

try:
    import obstore
    from obstore import exceptions as theirs
    from obstore.store import AzureStore, GCSStore, S3Store
except ModuleNotFoundError as missing:
    raise PackageMissing(
        f"An object store cannot be used: the package {missing.name} is not installed.",
        hint="Install it with: pip install 'graflow-ckpt[objects]'.",
        extra="objects",
    ) from missing

__all__ = ["AzureStore", "GCSStore", "S3Store", "obstore", "theirs"]
