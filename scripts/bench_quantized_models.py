"""How fast whole int8, int4 and FP8 models are beside the GGUF file of about the same size, in interleaved rounds.

    python scripts/bench_quantized_models.py [CHECKPOINT] [--rounds 7] [--threads 2] [--folder DIR]

CHECKPOINT is a folder of a llama-type model with config.json and safetensors; without one, a model of 180 million
random weights is written (with the vocabulary of the small checkpoint in tests/data). It is quantized to each pair of
types by `localinfer quantize`; then both answer in turn, in one process. Prints the median quotients of times, ours /
GGUF's; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path

import numpy as np
from measure import print_result, table
from ours import OpenModel
from safetensors.numpy import save_file

from localinfer.hub.report import Silent
from localinfer.quantize.pipeline import Wishes, quantize

VOCABULARY = Path(__file__).resolve().parents[1] / "tests" / "data" / "presidents-1m"
# A scheme of compressed-tensors, and the GGUF type that is about as large.
PAIRS = (("int8", "q8_0"), ("int4", "q4_0"), ("fp8", "q8_0"), ("fp8-block", "q8_0"))
LAYERS, WIDTH, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM = 16, 1024, 2816, 16, 4, 64
DECODE, PREFILL = 64, 512


def write_random_checkpoint(folder: Path) -> None:
    """Weights of mean 0 whose products keep their inputs' size."""
    config = json.loads((VOCABULARY / "config.json").read_text(encoding="utf-8"))
    config |= {
        "num_hidden_layers": LAYERS,
        "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 2048,
        "dtype": "float16",
    }
    random = np.random.default_rng(1)
    tensors = {"model.norm.weight": np.ones(WIDTH, np.float16)}

    def matrix(name: str, rows: int, columns: int) -> None:
        values = random.standard_normal((rows, columns), np.float32)
        tensors[f"model.{name}.weight"] = (values / columns**0.5).astype(np.float16)

    matrix("embed_tokens", config["vocab_size"], WIDTH)
    for layer in (f"layers.{i}" for i in range(LAYERS)):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.{layer}.{norm}.weight"] = np.ones(WIDTH, np.float16)
        matrix(f"{layer}.self_attn.q_proj", HEADS * HEAD_DIM, WIDTH)
        matrix(f"{layer}.self_attn.k_proj", KV_HEADS * HEAD_DIM, WIDTH)
        matrix(f"{layer}.self_attn.v_proj", KV_HEADS * HEAD_DIM, WIDTH)
        matrix(f"{layer}.self_attn.o_proj", WIDTH, HEADS * HEAD_DIM)
        matrix(f"{layer}.mlp.gate_proj", FEED_FORWARD, WIDTH)
        matrix(f"{layer}.mlp.up_proj", FEED_FORWARD, WIDTH)
        matrix(f"{layer}.mlp.down_proj", WIDTH, FEED_FORWARD)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(VOCABULARY / name, folder / name)


def quotients(ours: OpenModel, other: OpenModel, rounds: int) -> dict[str, list[float]]:
    """Ours / the other's time of each round, for single tokens and for a prompt; the first round only warms up."""
    found: dict[str, list[float]] = {"decode": [], "prefill": []}
    for _ in range(rounds + 1):
        found["prefill"].append(ours.prefill(0, PREFILL) / other.prefill(0, PREFILL))
        found["decode"].append(ours.decode(0, 32, DECODE) / other.decode(0, 32, DECODE))
    return {what: values[1:] for what, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the files go meanwhile (a temporary folder)")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        source = arguments.checkpoint
        if source is None:
            source = folder / "random"
            write_random_checkpoint(source)
        made: dict[str, tuple[Path, int]] = {}
        for name in dict.fromkeys(name for pair in PAIRS for name in pair):
            result = quantize(Wishes(source, name, output=folder / name, measure=False), Silent())
            made[name] = result.path, result.size
        for pair in PAIRS:
            models = [OpenModel(made[name][0], arguments.threads) for name in pair]
            found = quotients(models[0], models[1], arguments.rounds)
            for model in models:
                model.close()
            row = {"type": pair[0], "gguf": pair[1], "size": made[pair[0]][1] / made[pair[1]][1]}
            for what, values in found.items():
                low, middle, high = statistics.quantiles(values, n=4)
                row |= {what: middle, f"{what}_low": low, f"{what}_high": high}
            rows.append(row)
    print("time / time of the GGUF type: medians and quartiles")
    names = ("type", "GGUF", "size", "decode", "low", "high", "prefill", "low", "high")
    print(table(names, [tuple(row.values()) for row in rows]))
    print_result({"rows": rows})


if __name__ == "__main__":
    main()
