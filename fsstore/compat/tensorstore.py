"""`install_as_tensorstore`: programs that import `tensorstore` afterwards get fsstore.

    from fsstore.compat.tensorstore import install_as_tensorstore

    install_as_tensorstore()
    import orbax.checkpoint

Nothing happens before the call.  Names that fsstore has not are missing from the module, and where the two behave
differently, fsstore does as its documentation says.
"""

from __future__ import annotations

import sys

import fsstore
from fsstore import ocdbt

__all__ = ["install_as_tensorstore"]


def install_as_tensorstore() -> None:
    """Let `import tensorstore` mean fsstore in this process; raise if the real one is imported already.

    Call it before the library that imports tensorstore is imported: what has a reference to the real one keeps it.
    A second call does nothing.  Processes that are spawned have to call it for themselves.
    """
    loaded = sys.modules.get("tensorstore")
    if loaded is fsstore:
        return
    if loaded is not None:
        raise ImportError(
            "tensorstore is imported already, and who holds it would go on to use it; call install_as_tensorstore()"
            " before anything imports tensorstore"
        )
    sys.modules["tensorstore"] = fsstore
    sys.modules["tensorstore.ocdbt"] = ocdbt
