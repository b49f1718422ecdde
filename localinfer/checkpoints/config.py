"""config.json of a checkpoint, as the metadata of a GGUF file.

Keys and what is written when are those of llama.cpp's converter (conversion/base.py and the families beside it); where
it leaves out what our recorders can read (a window of Mistral, an unusual attention scale), that is written too.
Numbers are rounded to float32, as a GGUF file would hold them. What a model needs and models/ cannot do is refused.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from localinfer.errors import FormatError, UnsupportedError
from localinfer.formats.metadata import Value

_CONFIG = "config.json"


class Family(NamedTuple):
    """What is known of one class of transformers.

    architecture  general.architecture of the GGUF file
    defaults      values of keys that config.json may leave out, where they differ from BASE_DEFAULTS
    activation    the only one that the recorder knows
    window_period every how manieth layer has no window; 0: all have one
    """

    architecture: str
    defaults: Mapping[str, Any]
    activation: str = "silu"
    window_period: int = 0


BASE_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": None,  # as the weights that are there suggest
}
_GEMMA = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA3 = _GEMMA | {"max_position_embeddings": 131072, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0}
_GELU = "gelu_pytorch_tanh"
_GRANITE = {
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}

# "architectures" in config.json -> family (defaults: transformers, configuration_*.py)
FAMILIES = {
    "LlamaForCausalLM": Family("llama", {}),
    "LLaMAForCausalLM": Family("llama", {}),
    "MistralForCausalLM": Family(
        "llama", {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072}
    ),
    "Qwen2ForCausalLM": Family("qwen2", {"max_position_embeddings": 32768, "max_window_layers": 28}),
    "Qwen3ForCausalLM": Family("qwen3", {"max_position_embeddings": 32768, "max_window_layers": 28, "head_dim": 128}),
    "SmolLM3ForCausalLM": Family(
        "smollm3",
        {
            "max_position_embeddings": 32768,
            "max_window_layers": 28,
            "rope_theta": 2000000.0,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
        },
    ),
    "Gemma2ForCausalLM": Family(
        "gemma2",
        _GEMMA | {"max_position_embeddings": 8192, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        _GELU,
        window_period=2,
    ),
    "Gemma3ForCausalLM": Family("gemma3", _GEMMA3, _GELU, window_period=6),
    "Gemma3ForConditionalGeneration": Family("gemma3", _GEMMA3 | {"vocab_size": 262208}, _GELU, window_period=6),
    "Phi3ForCausalLM": Family("phi3", {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}),
    "GraniteForCausalLM": Family("granite", _GRANITE),
    "Olmo2ForCausalLM": Family("olmo2", {"rms_norm_eps": 1e-5}),
    "Olmo3ForCausalLM": Family("olmo2", {"rms_norm_eps": 1e-5, "sliding_window": 4096}, window_period=4),
}

# Keys that change nothing about an answer, or are read elsewhere (vocabulary.py, checkpoint.py).
_HARMLESS = {
    "_name_or_path", "_attn_implementation_autoset", "architectures", "attention_bias", "attention_dropout",
    "auto_map", "bos_token_id", "boi_token_id", "boi_token_index", "cache_implementation",
    "chunk_size_feed_forward", "dtype", "embd_pdrop", "eoi_token_id", "eoi_token_index", "eos_token_id",
    "finetuning_task", "gradient_checkpointing", "id2label", "image_token_id", "image_token_index",
    "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "mlp_bias", "mm_tokens_per_image",
    "model_type", "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp", "problem_type",
    "quantization_config", "resid_pdrop", "return_dict", "sep_token_id", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "unk_token_id", "unsloth_fixed", "unsloth_version",
    "use_cache", "vision_config",
}  # fmt: skip
# Keys of features that are not supported, unless they have one of these values.
_OFF = (None, False, 0)
_REFUSED: dict[str, tuple[Any, ...]] = {
    "num_experts": _OFF,
    "num_local_experts": _OFF,
    "n_routed_experts": _OFF,
    "clip_qkv": _OFF,
    "use_bidirectional_attention": _OFF,
    "use_mrope": _OFF,
    "mrope_section": _OFF,
    "is_causal": (None, True),
    "rope_interleaved": _OFF,
    "add_cross_attention": _OFF,
}


@dataclass
class Description:
    """What a configuration says, in GGUF's words.

    metadata   key-value pairs; the tokenizer's are not among them
    tensors    small float tensors that the converter computes (factors of rope)
    heads      rows of attn_q and attn_k belong to so many heads
    tied       whether the embedding table is the head, too; None: config.json does not say
    unused     beginnings of the names of weights that are not needed
    notes      what a person should know
    """

    architecture: str
    metadata: dict[str, Value] = field(default_factory=dict)
    tensors: dict[str, list[float]] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    vocab_size: int = 0
    tied: bool | None = None
    unused: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def describe(config: Mapping[str, Any], path: Path) -> Description:
    """Translates config.json, which lies at `path`.

    FormatError if a key is missing or makes no sense, UnsupportedError for a model that models/ cannot run.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    from localinfer.checkpoints.encoders import ENCODERS, describe_encoder

    if isinstance(name, str) and name in ENCODERS:
        return describe_encoder(config, name, path)
    if name not in FAMILIES:
        raise UnsupportedError(
            f"{path}: models of the class {name!r} are not supported",
            f"supported are {', '.join(sorted({*FAMILIES, *ENCODERS}))}",
        )
    family = FAMILIES[name]
    values = dict(config)
    if "text_config" in config:  # a model that also sees
        text = values.pop("text_config")
        if not isinstance(text, dict):
            raise FormatError(f"{path}: text_config should be an object")
        values |= text
    reader = Reader({**BASE_DEFAULTS, **family.defaults, **values}, path)
    description = _Translation(reader, family, name).translate()
    description.notes += reader.notes()
    return description


def float32(value: float) -> float:
    """The number rounded to what a GGUF file can hold."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.inf  # which no reader of metadata accepts


class Reader:
    """Typed reads of a JSON object, which remember what was asked for."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values = values
        self.path = path
        self.known: set[str] = set(BASE_DEFAULTS)

    def get(self, key: str, default: Any = None) -> Any:
        self.known.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**31:
            raise self.wrong(key, f"an integer from {minimum} to 2147483647", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return self.check_number(key, self.get(key, default))

    def check_number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e30:
            raise self.wrong(key, "a number from 0 to 1e30", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return value

    def wrong(self, key: str, expected: str, found: object) -> FormatError:
        if found is None:
            return FormatError(f"{self.path}: {key} is missing", "the folder may not be a complete model")
        return FormatError(f"{self.path}: {key} should be {expected}, but is {str(found)[:60]!r}")

    def notes(self) -> list[str]:
        """What no code has looked at: it may or may not matter."""
        unknown = [
            k for k in self.values if k not in self.known | _HARMLESS | _REFUSED.keys() and not k.startswith("_")
        ]
        if not unknown:
            return []
        return [f"{self.path.name} says things that localinfer does not know: {', '.join(sorted(unknown)[:8])}"]


class _Translation:
    """One config.json on its way to metadata."""

    def __init__(self, reader: Reader, family: Family, class_name: str) -> None:
        self.read = reader
        self.family = family
        self.class_name = class_name
        self.out = Description(family.architecture)
        self.layers = reader.integer("num_hidden_layers")
        self.width = reader.integer("hidden_size")
        self.heads = reader.integer("num_attention_heads")
        self.kv_heads = reader.integer("num_key_value_heads", self.heads)
        self.context = reader.integer("max_position_embeddings", minimum=2)
        if self.layers > 10_000:
            raise reader.wrong("num_hidden_layers", "at most 10000", self.layers)

    def translate(self) -> Description:
        self._refuse_what_is_not_known()
        out, read = self.out, self.read
        out.metadata["general.architecture"] = self.family.architecture
        out.vocab_size = read.integer("vocab_size")
        out.heads = {"attn_q": self.heads, "attn_k": self.kv_heads}
        tied = read.get("tie_word_embeddings")
        out.tied = tied if isinstance(tied, bool) else None
        self._put("vocab_size", out.vocab_size)
        self._put("context_length", self.context)
        self._put("embedding_length", self.width)
        self._put("block_count", self.layers)
        self._put("feed_forward_length", read.integer("intermediate_size"))
        self._put("attention.head_count", self.heads)
        self._put("attention.head_count_kv", self.kv_heads)
        self._put("attention.layer_norm_rms_epsilon", read.number("rms_norm_eps"))
        if read.get("head_dim") is not None:
            self._put("attention.key_length", self.head_dim)
            self._put("attention.value_length", self.head_dim)
        self._rope()
        self._windows()
        self._scales()
        return out

    @property
    def head_dim(self) -> int:
        if self.read.get("head_dim") is None and self.width % self.heads:
            raise FormatError(
                f"{self.read.path}: {self.heads} heads do not divide the hidden size {self.width}, and there is no "
                "head_dim"
            )
        return self.read.integer("head_dim", self.width // self.heads)

    def _put(self, key: str, value: float | str) -> None:
        self.out.metadata[f"{self.family.architecture}.{key}"] = float32(value) if isinstance(value, float) else value

    def _unsupported(self, what: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(f"{self.read.path}: {what}", hint)

    def _refuse_what_is_not_known(self) -> None:
        for key, harmless in _REFUSED.items():
            value = self.read.values.get(key)
            if not any(value is h or (value == h and type(value) is type(h)) for h in harmless):
                raise self._unsupported(f"{key} is {str(value)[:60]}, which is not supported")
        activation = self.read.get("hidden_activation") or self.read.get("hidden_act") or self.family.activation
        same = {"silu": ("silu", "swish"), _GELU: (_GELU, "gelu")}[self.family.activation]
        if activation not in same:
            raise self._unsupported(f"the activation {activation!r} is not supported for {self.class_name}")
        if self.family.architecture == "smollm3":
            self._check_layers_without_positions()

    def _check_layers_without_positions(self) -> None:
        self.read.get("no_rope_layer_interval")
        pattern = self.read.get("no_rope_layers")
        expected = [int((i + 1) % 4 != 0) for i in range(self.layers)]
        if self.read.integer("no_rope_layer_interval") != 4 or pattern not in (None, [], expected):
            raise self._unsupported("no_rope_layers other than every fourth are not supported")

    # ---- rotary positions --------------------------------------------------------------------------------------

    def _rope(self) -> None:
        """Both forms: rope_parameters (transformers 5), and rope_theta with rope_scaling."""
        rope, local = self._rope_parameters()
        base = self.read.check_number("rope_theta", rope.get("rope_theta", self.read.get("rope_theta")))
        self._put("rope.freq_base", base)
        if local is not None:
            self._put("rope.freq_base_swa", self.read.check_number("rope_theta", local.get("rope_theta", base)))
            if local.get("rope_type", "default") != "default":
                raise self._unsupported("scaled rope in layers with a window is not supported")
        self._rotated(rope)
        kind = rope.get("rope_type", rope.get("type")) or "default"
        match kind:
            case "default" | "none":
                pass
            case "linear":
                self._put("rope.scaling.type", "linear")
                self._put("rope.scaling.factor", self._rope_number(rope, "factor"))
            case "yarn":
                self._yarn(rope)
            case "llama3":
                self.out.tensors["rope_freqs.weight"] = self._llama3_factors(rope, base)
            case "longrope" | "su":
                self._longrope(rope)
            case "dynamic":
                self.out.notes.append(
                    f"this model stretches positions beyond {self.context} by the length of the text, which is not "
                    "supported: contexts up to there are exact"
                )
            case _:
                raise self._unsupported(f"rope scaling {str(kind)[:40]!r} is not supported")
        if self.family.architecture == "phi3" and kind not in ("longrope", "su"):
            self._put("rope.scaling.original_context_length", self._original_context(rope))

    def _rope_parameters(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Those of layers without a window, and of layers with one where they differ."""
        found = self.read.mapping("rope_parameters")
        scaling = self.read.mapping("rope_scaling")
        local_base = self.read.get("rope_local_base_freq")
        if "full_attention" in found or "sliding_attention" in found:
            full, local = found.get("full_attention", {}), found.get("sliding_attention", {})
            if not isinstance(full, dict) or not isinstance(local, dict):
                raise FormatError(f"{self.read.path}: rope_parameters should hold an object per kind of layer")
            return full, local
        local = None if local_base is None or self.family.architecture != "gemma3" else {"rope_theta": local_base}
        return found or scaling, local

    def _rotated(self, rope: dict[str, Any]) -> None:
        """How many columns of a head rotate."""
        share = self.read.check_number(
            "partial_rotary_factor", rope.get("partial_rotary_factor", self.read.get("partial_rotary_factor", 1.0))
        )
        if share != 1.0 and self.family.architecture != "phi3":
            raise self._unsupported(f"partial_rotary_factor {share} is not supported for {self.class_name}")
        if self.family.architecture in ("llama", "smollm3", "granite", "phi3"):
            self._put("rope.dimension_count", int(self.head_dim * share))

    def _rope_number(self, rope: dict[str, Any], key: str, default: float | None = None) -> float:
        value = rope.get(key)
        return self.read.check_number(f"rope {key}", default if value is None else value)

    def _original_context(self, rope: dict[str, Any]) -> int:
        value = self.read.get("original_max_position_embeddings", self.context)
        value = rope.get("original_max_position_embeddings") or value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 2 <= value < 2**31 or value % 1:
            raise self.read.wrong("original_max_position_embeddings", "an integer above 1", value)
        return int(value)

    def _yarn(self, rope: dict[str, Any]) -> None:
        for key in ("mscale", "mscale_all_dim"):
            if rope.get(key) not in _OFF:
                raise self._unsupported(f"yarn with {key} is not supported")
        if rope.get("truncate") not in (None, True):
            raise self._unsupported("yarn without truncation is not supported")
        self._put("rope.scaling.type", "yarn")
        self._put("rope.scaling.factor", self._rope_number(rope, "factor"))
        self._put("rope.scaling.original_context_length", self._original_context(rope))
        for key, name in (
            ("extrapolation_factor", "yarn_ext_factor"),
            ("attention_factor", "yarn_attn_factor"),
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
        ):
            if rope.get(key) is not None:
                self._put(f"rope.scaling.{name}", self._rope_number(rope, key))

    def _llama3_factors(self, rope: dict[str, Any], base: float) -> list[float]:
        """What each frequency is divided by: 1 for short wave lengths, `factor` for long ones, between them a blend.

        The wave length of pair i, compared with the original context in turns (transformers,
        modeling_rope_utils.py, `_compute_llama3_parameters`).
        """
        factor = self._rope_number(rope, "factor", 8.0)
        low, high = self._rope_number(rope, "low_freq_factor", 1.0), self._rope_number(rope, "high_freq_factor", 4.0)
        original = self._original_context(rope)
        if high <= low or factor == 0 or base <= 1:
            raise FormatError(f"{self.read.path}: the numbers of rope scaling llama3 contradict each other")
        factors = []
        for i in range(self.head_dim // 2):
            turns = original / (2 * math.pi * base ** (2 * i / self.head_dim))
            blend = min(1.0, max(0.0, (turns - low) / (high - low)))
            factors.append(1 / ((1 - blend) / factor + blend))
        return factors

    def _longrope(self, rope: dict[str, Any]) -> None:
        original = self._original_context(rope)
        for key in ("short_mscale", "long_mscale"):
            if rope.get(key) is not None:
                raise self._unsupported(f"longrope with {key} is not supported")
        for which in ("long", "short"):
            factors = rope.get(f"{which}_factor")
            if not isinstance(factors, list) or not factors:
                raise self.read.wrong(f"rope {which}_factor", "a list of numbers", factors)
            self.out.tensors[f"rope_factors_{which}.weight"] = [
                self.read.check_number(f"rope {which}_factor", factor) for factor in factors
            ]
        if self.family.architecture != "phi3":  # where the factors alone say it
            self._put("rope.scaling.type", "longrope")
        self._put("rope.scaling.original_context_length", original)
        scale = self.context / original
        magnitude = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
        self._put("rope.scaling.attn_factor", self._rope_number(rope, "attention_factor", magnitude))

    # ---- windows and scales ------------------------------------------------------------------------------------

    def _windows(self) -> None:
        pattern = self._windowed_layers()
        window = self.read.get("sliding_window")
        if window is not None and any(pattern):
            self._put("attention.sliding_window", self.read.integer("sliding_window"))
        elif self.family.architecture in ("phi3", "gemma2", "gemma3"):
            self._put("attention.sliding_window", 0)  # else a default holds
        period = self.family.window_period
        usual = [period == 0 or i % period < period - 1 for i in range(self.layers)]
        if any(pattern) and (pattern != usual or self.class_name == "Olmo3ForCausalLM"):
            key = f"{self.family.architecture}.attention.sliding_window_pattern"
            self.out.metadata[key] = memoryview(bytes(pattern)).cast("?")

    def _windowed_layers(self) -> list[bool]:
        """Which layers have a window, as transformers decides it."""
        read, n = self.read, self.layers
        architecture = self.family.architecture
        if self.class_name in ("LlamaForCausalLM", "LLaMAForCausalLM", "Olmo2ForCausalLM", "GraniteForCausalLM"):
            return [False] * n  # whatever the file says: these classes have no window
        kinds = read.get("layer_types")
        may = True
        if architecture in ("qwen2", "qwen3", "smollm3"):
            may = read.flag("use_sliding_window", False)
        first = read.get("max_window_layers")
        period = read.get("sliding_window_pattern", read.values.get("_sliding_window_pattern"))
        if read.get("sliding_window") is None or not may:
            return [False] * n
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) != n or set(kinds) - {"sliding_attention", "full_attention"}:
                raise read.wrong("layer_types", f"{n} times sliding_attention or full_attention", kinds)
            if self.family.window_period or architecture in ("qwen2", "qwen3", "smollm3"):
                return [kind == "sliding_attention" for kind in kinds]
        if architecture in ("qwen2", "qwen3", "smollm3"):
            return [i >= read.integer("max_window_layers", first, minimum=0) for i in range(n)]
        if not isinstance(period, int) or isinstance(period, bool) or period < 1:
            period = self.family.window_period
        return [period == 0 or (i + 1) % period != 0 for i in range(n)]

    def _scales(self) -> None:
        """The factors and caps that are a family's own."""
        read = self.read
        match self.family.architecture:
            case "gemma2" | "gemma3":
                scalar = read.number("query_pre_attn_scalar")
                if scalar != self._usual_scalar():
                    if scalar == 0:
                        raise read.wrong("query_pre_attn_scalar", "a number above 0", scalar)
                    self._put("attention.scale", scalar**-0.5)
                cap = read.get("attn_logit_softcapping")
                if self.family.architecture == "gemma2":
                    self._put("attn_logit_softcapping", read.check_number("attn_logit_softcapping", cap or 0.0))
                elif cap:
                    raise self._unsupported("attn_logit_softcapping is not supported for Gemma 3")
                final = read.get("final_logit_softcapping") or 0.0
                if final or self.family.architecture == "gemma2":
                    self._put("final_logit_softcapping", read.check_number("final_logit_softcapping", final))
            case "granite":
                self._put("attention.scale", read.number("attention_multiplier"))
                self._put("embedding_scale", read.number("embedding_multiplier"))
                self._put("residual_scale", read.number("residual_multiplier"))
                self._put("logit_scale", read.number("logits_scaling"))

    def _usual_scalar(self) -> float:
        """What llama.cpp and our recorders take for Gemma's query_pre_attn_scalar: files have no key for it."""
        large = self.layers == {"gemma2": 46, "gemma3": 62}[self.family.architecture]
        return self.width / self.heads if large else float(self.head_dim)
