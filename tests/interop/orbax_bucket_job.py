"""Save arrays of JAX to a bucket with orbax's serialization, and restore them: `orbax_bucket_job.py URL`.

Orbax itself makes specs of Google's buckets and of local files only, so the spec of the bucket is given here.
"""

from __future__ import annotations

import asyncio
import sys

from fsstore.compat.tensorstore import install_as_tensorstore

install_as_tensorstore()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from orbax.checkpoint import serialization  # noqa: E402

ARRAYS = {
    "w": jax.random.normal(jax.random.key(1), (300, 200)),
    "b": jnp.arange(70, dtype=jnp.bfloat16),
    "step": jnp.int32(7),
}


def spec(name, array):
    """Return the spec of an array in one database for all, as orbax makes them for local files."""
    metadata = {"shape": list(array.shape), "chunks": list(array.shape), "compressor": None}
    kvstore = {"driver": "ocdbt", "base": f"{sys.argv[1]}/", "path": f"{name}/"}
    return {"driver": "zarr", "dtype": str(array.dtype), "metadata": metadata, "kvstore": kvstore}


async def main():
    """Save all arrays together, restore them together, and compare."""
    await asyncio.gather(*(serialization.async_serialize(array, spec(name, array)) for name, array in ARRAYS.items()))
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    begun = [serialization.async_deserialize(place, spec(name, array)) for name, array in ARRAYS.items()]
    for result, array in zip(await asyncio.gather(*begun), ARRAYS.values(), strict=True):
        found = result[0] if isinstance(result, tuple) else getattr(result, "array", result)
        assert found.dtype == array.dtype
        assert np.asarray(found).tobytes() == np.asarray(array).tobytes()
    print("restored", len(begun))


asyncio.run(main())
