"""Random streams named by what they are for."""

import hashlib

import numpy as np


def generator(*key: object) -> np.random.Generator:
    """A random generator that depends on the key alone, so that the order of draws and resumption do not matter.

    Args:
        key: what the draw is: base seed, model, layer, head, matrix, kind, number. Equal text gives equal streams.
    """
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest, "little")))
