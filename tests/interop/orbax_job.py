"""Save or restore a checkpoint with orbax: `orbax_job.py ours|theirs save|restore PLACE`."""

from __future__ import annotations

import sys

library, verb, place = sys.argv[1:]
if library == "ours":
    from fsstore.compat.tensorstore import install_as_tensorstore

    install_as_tensorstore()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
import tensorstore  # noqa: E402
from etils import epath  # noqa: E402

assert (tensorstore.__name__ == "fsstore") == (library == "ours")


def state(step):
    """Return what is trained, as it is at a step."""
    normal = jax.random.normal(jax.random.key(step), (130, 70))
    return {
        "step": step,
        "params": {"w": normal, "b": normal[0].astype(jnp.bfloat16), "one": normal[:1, :3]},
        "opt": [np.arange(1000, dtype="i4") + step, jnp.float32(step), np.array(step == 2)],
    }


options = ocp.CheckpointManagerOptions(max_to_keep=2)
with ocp.CheckpointManager(epath.Path(place), options=options) as manager:
    if verb == "save":
        for step in range(3):
            manager.save(step, args=ocp.args.StandardSave(state(step)))
        manager.wait_until_finished()
    assert manager.all_steps() == [1, 2]
    found = manager.restore(2, args=ocp.args.StandardRestore(state(0)))


def same(one, other):
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype
    assert one.tobytes() == other.tobytes()


jax.tree.map(same, state(2), found)
print("restored", len(jax.tree.leaves(found)))
