"""Check recorded histories: python -m tests.service.history FILE…"""

from __future__ import annotations

import sys
from pathlib import Path

from .checker import check_files

if not sys.argv[1:]:
    sys.exit(__doc__)
report = check_files(map(Path, sys.argv[1:]))
print(report)
sys.exit(1 if report.violations else 0)
