"""The shell recipes of docs/formats/statements.md, read from the document itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_DOCUMENT: Final = Path(__file__).parents[2] / "docs/formats/statements.md"
_BLOCKS: Final = re.findall(r"```bash\n(.*?)```", _DOCUMENT.read_text(), re.DOTALL)
RECIPES: Final = {
    "ed25519": _BLOCKS[0] + _BLOCKS[1],
    "ecdsa-p256-sha256": _BLOCKS[0] + _BLOCKS[2],
}
