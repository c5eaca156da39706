"""`python -m graflow_ckpt` is `graflow-ckpt`."""

from __future__ import annotations

import sys

from graflow_ckpt.cli import main

sys.exit(main())
