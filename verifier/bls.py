"""BLS signatures over BLS12-381: verification of one signature under one key.

As draft-irtf-cfrg-bls-signature-05, basic scheme: messages are hashed to the curve by RFC 9380,
points are compressed as ZCash does it. Signatures lie in G1 and keys in G2, or the other way
round. Curve, hash and pairing are py_ecc's; its decompression leaves two things to its caller,
which are checked here: the point at infinity, and that a point is in the group of prime order.
Importing this module takes half a second.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from py_ecc.bls.g2_primitives import subgroup_check
from py_ecc.bls.hash_to_curve import hash_to_G1, hash_to_G2
from py_ecc.bls.point_compression import decompress_G1, decompress_G2
from py_ecc.bls.typing import G1Compressed, G2Compressed
from py_ecc.fields import optimized_bls12_381_FQ12 as FQ12
from py_ecc.optimized_bls12_381.optimized_curve import G1, G2, is_inf, neg
from py_ecc.optimized_bls12_381.optimized_pairing import final_exponentiate, pairing

from verifier.errors import BeaconError

G1_BYTES: Final = 48
G2_BYTES: Final = 96
_DOMAIN: Final = "BLS_SIG_BLS12381{}_XMD:SHA-256_SSWU_RO_NUL_"
# py_ecc's stubs ask for a hash object where its code calls a constructor.
_SHA256: Final[Any] = sha256


def verify(public_key: bytes, signature: bytes, message: bytes) -> None:
    """Check one signature.

    Args:
        public_key: compressed, 96 bytes (G2) or 48 (G1); one that the caller trusts.
        signature: compressed, 48 bytes under a key of 96, 96 bytes under one of 48.
        message: what was signed.

    Raises:
        BeaconError: of another length, malformed, no point of the curve or of its group, the
            point at infinity, or not this key's over this message.

    """
    if len(public_key) == G2_BYTES:
        valid = _in_g1(public_key, signature, message)
    else:
        valid = _in_g2(public_key, signature, message)
    if not valid:
        raise BeaconError("not one of this message by this key")


def _in_g1(public_key: bytes, signature: bytes, message: bytes) -> bool:
    point = _member(signature, G1_BYTES)
    hashed = hash_to_G1(message, _DOMAIN.format("G1").encode(), _SHA256)
    return _equal((G2, point), (_g2(public_key), hashed))


def _in_g2(public_key: bytes, signature: bytes, message: bytes) -> bool:
    point = _member(signature, G2_BYTES)
    hashed = hash_to_G2(message, _DOMAIN.format("G2").encode(), _SHA256)
    return _equal((point, G1), (hashed, _g1(public_key)))


def _member(signature: bytes, size: int) -> Any:
    """Return a signature's point, which is in the group of prime order and not its zero."""
    if len(signature) != size:
        raise BeaconError(f"{len(signature)} bytes long, and not {size}")
    try:
        point = _g1(signature) if size == G1_BYTES else _g2(signature)
    except ValueError:
        raise BeaconError("no point of the curve") from None
    if is_inf(point):
        raise BeaconError("the point at infinity")
    if not subgroup_check(point):
        raise BeaconError("a point outside the group of prime order")
    return point


def _g1(data: bytes) -> Any:
    return decompress_G1(G1Compressed(int.from_bytes(data, "big")))


def _g2(data: bytes) -> Any:
    high, low = (int.from_bytes(data[i : i + G1_BYTES], "big") for i in (0, G1_BYTES))
    return decompress_G2(G2Compressed((high, low)))


def _equal(left: Any, right: Any) -> bool:
    """Whether two pairs of G2 and G1 have one pairing; the final power is taken once for both."""
    (q, p), (s, r) = left, right
    quotient = pairing(q, p, final_exponentiate=False) * pairing(
        s, neg(r), final_exponentiate=False
    )
    return bool(final_exponentiate(quotient) == FQ12.one())
