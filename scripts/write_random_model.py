"""Writes a llama of random Q4_K and Q6_K weights, of a real model's shape, mixed as llama.cpp mixes Q4_K_M.

    python scripts/write_random_model.py 1.5b OUT.gguf
    python scripts/write_random_model.py 8b OUT.gguf

The same shape and seed give the same bytes. Memory stays small: rows are written as they are drawn. The weights
have the spread of a freshly initialised network (standard deviation 1 / sqrt(columns)), so activations stay finite.
Speed and memory do not depend on the values; the text such a model writes means nothing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
BLOCK = 256  # weights per Q4_K and Q6_K block
PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Shape:
    """The sizes of a llama. Every matrix has a multiple of 256 columns, as the K types ask for."""

    name: str
    layers: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    rope_base: float
    tied: bool  # the output head is the embedding table


SHAPES = {
    "1.5b": Shape("random-1.5b", 28, 1536, 8960, 12, 2, 128, 151936, 32768, 1e6, tied=True),
    "8b": Shape("random-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5, tied=False),
    "tiny": Shape("random-tiny", 8, 256, 512, 4, 2, 64, 1024, 2048, 1e4, tied=False),
}


def more_bits(layer: int, layers: int) -> bool:
    """Whether Q4_K_M stores this layer's attn_v and ffn_down as Q6_K: first and last eighth, every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def matrices(shape: Shape) -> Iterator[tuple[str, int, int, str]]:
    """`(name, rows, columns, type)` of every matrix in the order of the file."""
    d, ff, q, kv = shape.width, shape.feed_forward, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", shape.vocabulary, d, "Q6_K" if shape.tied else "Q4_K"
    if not shape.tied:
        yield "output.weight", shape.vocabulary, d, "Q6_K"
    for i in range(shape.layers):
        mixed = "Q6_K" if more_bits(i, shape.layers) else "Q4_K"
        yield f"blk.{i}.attn_q.weight", q, d, "Q4_K"
        yield f"blk.{i}.attn_k.weight", kv, d, "Q4_K"
        yield f"blk.{i}.attn_v.weight", kv, d, mixed
        yield f"blk.{i}.attn_output.weight", d, q, "Q4_K"
        yield f"blk.{i}.ffn_gate.weight", ff, d, "Q4_K"
        yield f"blk.{i}.ffn_up.weight", ff, d, "Q4_K"
        yield f"blk.{i}.ffn_down.weight", d, ff, mixed


def half(values: npt.NDArray[Any]) -> Bytes:
    """Floats as the two bytes of their float16, `[n, 2]`."""
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)


def random_q4_k(blocks: int, spread: float, rng: np.random.Generator) -> Bytes:
    """`[blocks, 144]`: d and dmin (float16), 12 bytes of eight 6-bit scales and minimums, 128 bytes of 4-bit values.

    The weight is d * sc * q - dmin * m. With m = sc and dmin = 7.5 d it is d * sc * (q - 7.5): mean 0.
    """
    sc = rng.integers(24, 48, (blocks, 8), dtype=np.uint8)
    deviation = math.sqrt(float(np.mean(np.arange(24, 48) ** 2.0)) * (16**2 - 1) / 12)
    d = spread / deviation * rng.uniform(0.8, 1.2, blocks)
    out = np.empty((blocks, 144), np.uint8)
    out[:, 0:2], out[:, 2:4] = half(d), half(7.5 * d)
    # The 6-bit fields: entries 0-3 and the low bits' upper halves of 4-7 share bytes 0-7, the rest is in bytes 8-11.
    out[:, 4:8] = sc[:, :4] | (sc[:, 4:] >> 4) << 6
    out[:, 8:12] = out[:, 4:8]
    out[:, 12:16] = (sc[:, 4:] & 15) | (sc[:, 4:] & 15) << 4
    out[:, 16:] = rng.integers(0, 256, (blocks, 128), dtype=np.uint8)
    return out


def random_q6_k(blocks: int, spread: float, rng: np.random.Generator) -> Bytes:
    """`[blocks, 210]`: 128 + 64 bytes of 6-bit values, sixteen int8 scales, d (float16); weight d * sc * (q - 32)."""
    sc = rng.integers(32, 96, (blocks, 16), dtype=np.int8)
    sc *= rng.choice(np.array([-1, 1], np.int8), (blocks, 16))
    deviation = math.sqrt(float(np.mean(np.arange(32, 96) ** 2.0)) * (64**2 - 1) / 12)
    out = np.empty((blocks, 210), np.uint8)
    out[:, :192] = rng.integers(0, 256, (blocks, 192), dtype=np.uint8)
    out[:, 192:208] = sc.view(np.uint8)
    out[:, 208:] = half(spread / deviation * rng.uniform(0.8, 1.2, blocks))
    return out


WRITERS = {"Q4_K": random_q4_k, "Q6_K": random_q6_k}


def vocabulary(size: int) -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges and token types of a byte-level BPE that builds words of up to four letters.

    Letters merge in pairs, pairs with a letter or a pair; a word may start with the space's stand-in. Two control
    tokens (begin, end of text) come last.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))  # GPT-2's stand-ins for bytes that do not print
    byte_tokens = [chr(b) if b in printable else chr(next(others)) for b in range(256)]
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    first = [*letters, byte_tokens[ord(" ")]]

    def merged() -> Iterator[tuple[str, str]]:
        yield from product(first, letters)
        yield from ((a + b, c) for a, b, c in product(first, letters, letters))
        yield from ((a + b, c + d) for a, b, c, d in product(first, letters, letters, letters))

    control = ["<|begin_of_text|>", "<|end_of_text|>"]
    pairs = list(islice(merged(), size - len(byte_tokens) - len(control)))
    tokens = [*byte_tokens, *(a + b for a, b in pairs), *control]
    if len(tokens) != size:
        raise ValueError(f"cannot make a vocabulary of {size} tokens")
    types = [int(gguf.TokenType.NORMAL)] * (size - len(control)) + [int(gguf.TokenType.CONTROL)] * len(control)
    return tokens, [f"{a} {b}" for a, b in pairs], types


def write_metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Everything a llama loader asks for: sizes, rotary base, tokenizer."""
    writer.add_name(shape.name)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    tokens, merges, types = vocabulary(shape.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(shape.vocabulary - 2)
    writer.add_eos_token_id(shape.vocabulary - 1)
    writer.add_add_bos_token(True)


def write_model(path: Path, shape: Shape, seed: int = 1) -> int:
    """Writes the model; returns the size of the file in bytes."""
    rng = np.random.Generator(np.random.PCG64(seed))
    writer = gguf.GGUFWriter(str(path), "llama")
    write_metadata(writer, shape)
    norms = ["output_norm.weight"]
    norms += [f"blk.{i}.{part}_norm.weight" for i in range(shape.layers) for part in ("attn", "ffn")]
    for name in norms:
        writer.add_tensor_info(name, (shape.width,), np.dtype(np.float32), shape.width * 4)
    sizes = gguf.GGML_QUANT_SIZES
    for name, rows, columns, kind in matrices(shape):
        quantization = gguf.GGMLQuantizationType[kind]
        row_bytes = columns // BLOCK * sizes[quantization][1]
        writer.add_tensor_info(name, (rows, row_bytes), np.dtype(np.uint8), rows * row_bytes, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if writer.fout is None:
        raise RuntimeError("the GGUF writer has no open file")
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    for _ in norms:
        data = np.ones(shape.width, "<f4").tobytes()
        out.write(data)
        writer.write_padding(out, len(data))
    for _, rows, columns, kind in matrices(shape):
        blocks, written = rows * columns // BLOCK, 0
        piece = PIECE_BYTES // sizes[gguf.GGMLQuantizationType[kind]][1]
        for start in range(0, blocks, piece):
            data = WRITERS[kind](min(piece, blocks - start), 1 / math.sqrt(columns), rng).tobytes()
            out.write(data)
            written += len(data)
        writer.write_padding(out, written)
    writer.close()
    return path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    size = write_model(arguments.path, SHAPES[arguments.shape], arguments.seed)
    print(f"{arguments.path}: {size:,} bytes")


if __name__ == "__main__":
    main()
