"""Format of saved states of C environments: checksum, identity of the environments, state bytes.

The *identity* is a dictionary of properties (``EnvIdentity``), such as the environment's name and a
hash of its sources. A state is restored only in environments with the same identity.

| bytes | meaning |
| --- | --- |
| 8 | ``PUFENV01``: file type and version of the format |
| 32 | SHA-256 of the remaining bytes |
| 8 | length of the JSON text in bytes, little-endian |
| ... | JSON text: the identity; padded with spaces, so that the state begins at a multiple of 16 |
| ... | the state of the environments |
"""

import hashlib
import json
import struct
from collections.abc import Container, Mapping

import numpy as np

from puffer_mlx.errors import UserError

_MAGIC = b"PUFENV01"
_HEADER = struct.Struct("<8s32sQ")
_DIGEST = slice(8, 40)
_ALIGNMENT = 16  # alignment of the state in bytes, required by envs/src/vec.h

_DAMAGED_HINT = "the file is damaged or cut off; use another checkpoint"
_RESUME_HINT = "resume with the same value, or load only the policy: --load-model-path"
_SOURCES_HINT = "the environment's sources were changed since the state was saved; " + _RESUME_HINT

EnvIdentity = Mapping[str, str | int]


def pack_state(identity: EnvIdentity, body: np.ndarray) -> np.ndarray:
    """Encode environments' state as bytes: a header with checksum and identity, then the state.

    Args:
        identity: Values by name, saved in the header.
        body: State of the environments, (bytes,) uint8.

    Returns:
        (bytes,) uint8, equal for equal arguments.
    """
    text = json.dumps(dict(identity)).encode()
    excess = (_HEADER.size + len(text)) % _ALIGNMENT
    if excess:
        text += b" " * (_ALIGNMENT - excess)
    header = bytearray(_HEADER.pack(_MAGIC, b"", len(text)))  # the checksum is filled in below
    state = np.concatenate([np.frombuffer(header + text, np.uint8), body])
    state[_DIGEST] = np.frombuffer(_digest(state), np.uint8)
    return state


def unpack_state(
    state: np.ndarray, identity: EnvIdentity, sources: Container[str] = ()
) -> np.ndarray:
    """Check the header of environments' saved state, and return the state after it.

    Args:
        state: Result of ``pack_state``.
        identity: Identity of the environments that resume from the state.
        sources: Hashes of other versions of the sources whose states are accepted, too.

    Returns:
        Copy of the ``body`` of ``pack_state``, aligned for C.

    Raises:
        UserError: The bytes aren't a saved state, are damaged, or have another identity.
    """
    if state.dtype != np.uint8 or state.ndim != 1 or bytes(state[: len(_MAGIC)]) != _MAGIC:
        raise UserError(
            "the state of the environments isn't in the format of this version",
            f"a saved state begins with {_MAGIC.decode()}; " + _RESUME_HINT,
        )
    state = np.ascontiguousarray(state)
    if _digest(state) != bytes(state[_DIGEST]):
        raise UserError("the state of the environments doesn't match its checksum", _DAMAGED_HINT)
    *_, length = _HEADER.unpack(bytes(state[: _HEADER.size]))
    saved = json.loads(bytes(state[_HEADER.size : _HEADER.size + length]))
    if saved.get("sources") in sources:  # accepted: treat it as equal in the comparison below
        saved["sources"] = identity["sources"]
    for key in {**identity, **saved}:
        if saved.get(key) != identity.get(key):
            raise UserError(
                f"the state of the environments was saved with {key} {saved.get(key, 'absent')}, "
                f"expected {identity.get(key, 'absent')}",
                _SOURCES_HINT if key == "sources" else _RESUME_HINT,
            )
    return state[_HEADER.size + length :].copy()


def _digest(state: np.ndarray) -> bytes:
    """Return the SHA-256 checksum of environments' saved state, without its checksum field."""
    return hashlib.sha256(state[_DIGEST.stop :].data).digest()
