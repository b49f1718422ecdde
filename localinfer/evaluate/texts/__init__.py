"""The text that ships with localinfer: about 100 kB of English prose and speeches, all in the public domain.

Chapters of Moby-Dick (Herman Melville, 1851), and parts of addresses on the State of the Union (works of the government
of the United States): 35, 85, 1985 and 2015 to evaluate with, 45, 55, 1965 and 2005 to calibrate with. The two halves
have no sentence in common, so that a model calibrated with one can be evaluated on the other.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

Half = Literal["evaluation", "calibration"]


def default_text(half: Half = "evaluation") -> str:
    """One half of the text, about 49,000 bytes of UTF-8."""
    return files(__name__).joinpath(f"{half}.txt").read_bytes().decode("utf-8")
