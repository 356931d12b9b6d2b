"""Masks that cancel in a sum, and their cryptography: keys, key agreement and streams.

Keys are X25519's (RFC 7748), keys derived from an agreement are by HKDF (RFC 5869) with SHA-256,
a stream is AES-256's in counter mode, and messages from client to client through the server are
sealed by ChaCha20-Poly1305 (RFC 8439), all from the library ``cryptography``, an optional
dependency that is imported where it is used.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.privacy.sums.fixed_point import FixedPoint, Words

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

KEY_BYTES = 32
TAG_BYTES = 16


@dataclass(frozen=True)
class KeyPair:
    """X25519 key pair for one secure sum; ``private`` is the private key, 32 bytes."""

    private: bytes

    @staticmethod
    def new() -> KeyPair:
        """Draw a new random key pair."""
        return KeyPair(secrets.token_bytes(KEY_BYTES))

    @cached_property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    @cached_property
    def _key(self) -> X25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        # Cached: reading a private key takes as long as a key agreement.
        return X25519PrivateKey.from_private_bytes(self.private)

    def agreed(self, public: bytes, purpose: bytes) -> bytes:
        """Derive a secret of 32 bytes, for one purpose, that only the owners of both keys know.

        Raises ``RefusedUpdateError`` if the public key is invalid.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        try:
            secret = self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise RefusedUpdateError("a public key is none") from error
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


def stream(seed: bytes, numbers: int, form: FixedPoint) -> Words:
    """Expand a seed of 32 bytes to ``numbers`` pseudo-random words; never reuse a seed."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    zeros = bytes(numbers * form.words.itemsize)
    encryptor = Cipher(AES256(seed), CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(zeros), form.words)


def seal(key: bytes, stage: int, sender: int, content: bytes, purpose: bytes) -> bytes:
    """Encrypt content for the client that shares the key; the result is called a box.

    A box is ``TAG_BYTES`` longer than its content. Use a key for one message per stage and
    direction. A box without content is a tag, which proves that its sender took part.
    """
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(_nonce(stage, sender), content, purpose)


def open_sealed(key: bytes, stage: int, sender: int, box: bytes, purpose: bytes) -> bytes:
    """Decrypt a box, a result of ``seal``; raise ``RefusedUpdateError`` if it was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(_nonce(stage, sender), box, purpose)
    except InvalidTag as error:
        why = f"what client {sender} has sealed was changed on its way"
        raise RefusedUpdateError(why) from error


def _nonce(stage: int, sender: int) -> bytes:
    return stage.to_bytes(4, "big") + sender.to_bytes(8, "big")
