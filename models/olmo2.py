"""OLMo 2 (arXiv:2501.00656) and OLMo 3.

No norms before the branches, only after them; norms of q and k over all heads together. OLMo 3 has windows in
three layers of four, and scales rope in the others only.
"""

from dataclasses import replace

from localinfer.kernels.program import Program
from localinfer.models.base import ModelSource
from localinfer.models.decoder import read_config, read_windows, record_decoder
from localinfer.models.rope import plain_rope, read_base, rotated_columns


def record(source: ModelSource) -> Program:
    config = read_config(source, "halves")
    windows = read_windows(source, config.layers, period=4)
    base = read_base(source, "rope.freq_base_swa", read_base(source))
    local = plain_rope(base, rotated_columns(source, config.head_dim), "halves")
    config = replace(
        config,
        windows=windows,
        rope=tuple(local if window else rope for window, rope in zip(windows, config.rope, strict=True)),
        qk_norm="full",
        pre_norm=False,
        post_norm=True,
    )
    return record_decoder(source, config)
