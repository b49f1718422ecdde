"""Published data that lies beside the checkout where the project is developed, and nowhere else."""

from __future__ import annotations

from pathlib import Path

PUBLISHED = Path(__file__).resolve().parents[1].parent / "shared" / "data"
TEMPLATES = PUBLISHED / "templates"
VOCABULARIES = PUBLISHED / "vocab"
