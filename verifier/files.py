"""Names, formats and size limits of the files of an audit (docs/formats/audit-result.md)."""

from __future__ import annotations

from typing import Final

RESULT_FILE: Final = "audit-result.dsse.json"
REPORT_JSON: Final = "report.json"
REPORT_HTML: Final = "report.html"
VERIFIER_KEY_FILE: Final = "verifier.pub.pem"
PROOF_FILE: Final = "fraud-proof.json"
CHALLENGE_FILE: Final = "challenge.json"

# Each step takes 11 bytes for its loss; a sampled one some kilobytes.
MAX_REPORT_BYTES: Final = 64 << 20
# Two panels of 64 by 32,768 elements in base64, and their paths.
MAX_PROOF_BYTES: Final = 32 << 20
PROOF_PREFIX: Final = b'{"format":"bitwitness/fraud-proof/'
