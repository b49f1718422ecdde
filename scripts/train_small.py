"""Train a small llama-type model on public-domain text, and save it as Hugging Face checkpoints are saved.

    python scripts/train_small.py FOLDER --size 1m|10m [--steps N] [--seed 0] [--threads 2] [--texts DIR]

A sensible model that anyone can make in minutes (1m) or an hour (10m) on two cores, from texts that package indexes
carry (public_text.py): a source for quantizers and verifiers that no licence and no download server stands before.
All matrices have columns in multiples of 256, as block formats want them.

Every `--save-minutes` the state goes to FOLDER/training/state.safetensors; the same command goes on from there, and
ends with the weights that an uninterrupted run ends with (same machine, same number of threads). The learning rate is
constant until the last 30 % of the steps, where it falls to 0; the state before that is kept in training/
stable.safetensors, and the same command with more `--steps` goes on from it. Delete FOLDER/training when all is done.

Weights are saved in bfloat16: what public checkpoints carry, and half the bytes. The losses that README.md in FOLDER
and the last line give are those of the saved weights on documents that were not trained on.

Prints the loss over time and last one JSON line:
    loss            nats per token on held-out text
    perplexity      e to the loss
    bits_per_byte   the same in bits per byte of text, which doesn't depend on the vocabulary
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from measure import print_result
from public_text import PACKAGES, Document, documents
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

# transformers probes for an unrelated package named `kernels`; an editable install of localinfer puts a folder of that
# name on the path, which must not be mistaken for it. None means: not installed.
sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]

from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM  # noqa: E402

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
# Llama 3's words: GGUF's "llama-bpe".
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EVALUATION_WINDOWS, PROGRESS_WINDOWS = 128, 24  # at the end, and on the way
EXCERPT_CHARACTERS = 12_000  # of each held-out text in held_out.txt


@dataclass(frozen=True)
class Size:
    """Shape of a model and how long it is trained by default."""

    vocabulary: int
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    context: int
    batch: int  # windows of `context` tokens in a step
    steps: int
    rate: float


SIZES = {
    "1m": Size(1024, 256, 512, 2, 4, 2, context=512, batch=4, steps=1200, rate=3e-3),
    "10m": Size(4096, 512, 1024, 4, 8, 2, context=512, batch=4, steps=3000, rate=1.5e-3),
}


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE tokenizer of `vocabulary` tokens, the two marks at the front; encoding puts BEGIN first."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        show_progress=False,
        special_tokens=[AddedToken(BEGIN, special=True), AddedToken(END, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B:1", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return tokenizer


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """int64[tokens]: all texts one after the other, END after each."""
    end = tokenizer.token_to_id(END)
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return torch.tensor([token for encoding in encodings for token in (*encoding.ids, end)])


class Windows:
    """Training batches as a function of seed and step alone, so that a resumed run sees what it would have seen.

    A pass takes every window of `context` tokens once, in random order, from a random offset on.
    """

    def __init__(self, tokens: Tensor, begin: int, context: int, batch: int, seed: int) -> None:
        self.tokens, self.begin, self.context, self.batch, self.seed = tokens, begin, context, batch, seed
        # One window less than there are, to leave room for the offset.
        self.steps_per_pass = (len(tokens) // context - 1) // batch
        if self.steps_per_pass < 1:
            raise SystemExit(f"{len(tokens)} tokens are too few for a batch of {batch} windows of {context}")
        self._pass, self._starts = -1, torch.empty(0, dtype=torch.int64)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64[batch, context]; inputs are the targets behind BEGIN, without the last."""
        turn, row = divmod(step, self.steps_per_pass)
        if turn != self._pass:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + turn)
            offset = torch.randint(self.context, (1,), generator=generator)
            order = torch.randperm(self.steps_per_pass * self.batch, generator=generator)
            self._pass, self._starts = turn, order * self.context + offset
        starts = self._starts[row * self.batch : (row + 1) * self.batch]
        return with_begin(self.tokens, starts, self.begin, self.context)


def with_begin(tokens: Tensor, starts: Tensor, begin: int, context: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, int64[starts, context]: the models that run this begin every text with BEGIN, too."""
    targets = tokens[starts[:, None] + torch.arange(context)]
    return torch.cat([torch.full((len(starts), 1), begin), targets[:, :-1]], dim=1), targets


def build_model(size: Size, seed: int) -> LlamaForCausalLM:
    """Random float32 weights; the matrix of the embedding is that of the output, too."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=size.context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


def loss_of(model: LlamaForCausalLM, inputs: Tensor, targets: Tensor, exact: bool = False) -> Tensor:
    """Nats per token, computed in float32 (`exact`) or in bfloat16 where that is safe, which is faster."""
    with torch.autocast("cpu", torch.bfloat16, enabled=not exact):
        logits = model(input_ids=inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(
    model: LlamaForCausalLM, tokens: Tensor, size: Size, windows: int = EVALUATION_WINDOWS, exact: bool = False
) -> float:
    """Nats per token over windows spread evenly over `tokens`."""
    count = min(windows, len(tokens) // size.context)
    starts = torch.arange(count) * ((len(tokens) - size.context) // max(count - 1, 1))
    total = 0.0
    for part in starts.split(size.batch):
        inputs, targets = with_begin(tokens, part, 0, size.context)
        total += float(loss_of(model, inputs, targets, exact)) * len(part)
    return total / count


def decay_start(steps: int) -> int:
    """The step from which the learning rate falls."""
    return steps - steps * 3 // 10


def rate_at(step: int, steps: int, peak: float) -> float:
    """Learning rate: linear up over the first 100 steps, constant, linear down to 0 over the last 30 %."""
    return peak * min((step + 1) / min(100, steps), 1.0, (steps - step) / (steps - decay_start(steps)))


class Trainer:
    """Model and optimizer of a run, the step it's at, and how these are saved and restored."""

    def __init__(self, size: Size, steps: int, seed: int) -> None:
        self.size, self.steps, self.step = size, steps, 0
        self.model = build_model(size, seed)
        matrices = [weight for weight in self.model.parameters() if weight.ndim > 1]
        vectors = [weight for weight in self.model.parameters() if weight.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=size.rate, betas=(0.9, 0.95), fused=True)

    def advance(self, inputs: Tensor, targets: Tensor) -> float:
        """One step; the loss before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(self.step, self.steps, self.size.rate)
        loss = loss_of(self.model, inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.item()

    def save(self, path: Path) -> None:
        """All that the next step depends on; appears under its name only when complete."""
        tensors = {f"weight.{name}": weight.detach() for name, weight in self.model.named_parameters()}
        for name, weight in self.model.named_parameters():
            for part, tensor in self.optimizer.state[weight].items():
                tensors[f"{part}.{name}"] = tensor
        temporary = path.with_suffix(".part")
        save_file(tensors, temporary, {"step": str(self.step), "steps": str(self.steps)})
        temporary.replace(path)

    @torch.no_grad()
    def restore(self, path: Path) -> bool:
        """Go on from a saved state. False if it belongs to another run's fall of the learning rate."""
        with safe_open(path, "pt") as file:
            step, steps = (int(file.metadata()[key]) for key in ("step", "steps"))
            if steps != self.steps and step > min(decay_start(steps), decay_start(self.steps)):
                return False
            for name, weight in self.model.named_parameters():
                weight.copy_(file.get_tensor(f"weight.{name}"))
                self.optimizer.state[weight] = {
                    part: file.get_tensor(f"{part}.{name}") for part in ("step", "exp_avg", "exp_avg_sq")
                }
        self.step = step
        return True


def train(trainer: Trainer, windows: Windows, held_out: Tensor, folder: Path, save_minutes: float) -> None:
    """Go on from FOLDER's states, if any, to the last step; print how the loss falls."""
    states = folder / "training"
    states.mkdir(parents=True, exist_ok=True)
    for name in ("state.safetensors", "stable.safetensors"):
        if (states / name).exists() and trainer.restore(states / name):
            print(f"goes on from step {trainer.step} ({name})", flush=True)
            break
    print(f"{'step':>6} {'minutes':>8} {'tokens':>11} {'rate':>9} {'loss':>7} {'held-out':>9}", flush=True)
    began = saved = time.monotonic()
    losses: list[float] = []
    every = max(trainer.steps // 20, 1)
    while trainer.step < trainer.steps:
        if trainer.step == decay_start(trainer.steps):
            trainer.save(states / "stable.safetensors")
        losses.append(trainer.advance(*windows.at(trainer.step)))
        if trainer.step % every == 0 or trainer.step == trainer.steps:
            minutes = (time.monotonic() - began) / 60
            tokens = trainer.step * windows.batch * windows.context
            rate = rate_at(trainer.step - 1, trainer.steps, trainer.size.rate)
            loss = sum(losses) / len(losses)
            held_out_loss = evaluate(trainer.model, held_out, trainer.size, PROGRESS_WINDOWS)
            print(
                f"{trainer.step:>6} {minutes:>8.2f} {tokens:>11,} {rate:>9.2e} {loss:>7.4f} {held_out_loss:>9.4f}",
                flush=True,
            )
            losses.clear()
        if time.monotonic() - saved > save_minutes * 60 or trainer.step == trainer.steps:
            trainer.save(states / "state.safetensors")
            saved = time.monotonic()


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, size: Size, folder: Path) -> None:
    """The files of a Hugging Face checkpoint. The model's weights are rounded to bfloat16."""
    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1)
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": size.context,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def excerpt(held_out: Sequence[Document]) -> str:
    """Some text of a chapter and of an address that were not trained on, whole sentences."""
    parts = []
    for name in ("chapter_45.txt", "1865_andrew_johnson_nu.txt"):
        text = next(document.text for document in held_out if document.name == name)[:EXCERPT_CHARACTERS]
        parts.append(text[: text.rindex(". ") + 1])
    return "\n".join(parts) + "\n"


def write_readme(folder: Path, result: dict, size: str, threads: int) -> None:
    """What this is, where it comes from and how to make it again."""
    packages = "\n".join(f"- npm `{p.name}` {p.version}, sha256 `{p.sha256}`" for p in PACKAGES)
    shape = ", ".join(f"{key} {value}" for key, value in result["size"].items())
    text = f"""# A llama-type model of {result["parameters"] / 1e6:.1f} million parameters

Trained from random weights (seed {result["seed"]}) by `scripts/train_small.py`:

    python scripts/train_small.py {folder.name} --size {size} --steps {result["steps"]} --seed {result["seed"]} \
--threads {threads}

{shape}; {result["tokens"]:,} tokens seen in {result["steps"]:,} steps; torch {result["torch"]}.

Held-out text: loss {result["loss"]:.4f} nats per token, perplexity {result["perplexity"]:.2f}, \
{result["bits_per_byte"]:.3f} bits per byte; on `held_out.txt` perplexity {result["excerpt_perplexity"]:.2f} \
(windows of {result["size"]["context"]} tokens, the first of each behind the begin mark).

Text: addresses of the presidents of the United States to Congress and Moby Dick, without those whose year or chapter
ends in 5: these are held out, and `held_out.txt` has an excerpt. All in the public domain, from packages whose data
are dedicated to the public (PDDL 1.0, contents CC0):

{packages}

The weights carry the licence of this project.
"""
    (folder / "README.md").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="1m")
    parser.add_argument("--steps", type=int, help="default: what the size says")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-minutes", type=float, default=3.0)
    parser.add_argument(
        "--texts", type=Path, default=Path.home() / ".cache" / "public_text", help="where archives are kept"
    )
    options = parser.parse_args()
    size: Size = SIZES[options.size]
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing reads it, and it takes time

    everything = documents(options.texts)
    training = [document.text for document in everything if not document.held_out]
    held_out_documents = [document for document in everything if document.held_out]
    held_out_text = [document.text for document in held_out_documents]
    tokenizer = train_tokenizer(training, size.vocabulary)
    tokens, held_out = encode_all(tokenizer, training), encode_all(tokenizer, held_out_text)
    trainer = Trainer(size, options.steps or size.steps, options.seed)
    parameters = sum(weight.numel() for weight in trainer.model.parameters())
    print(f"{parameters:,} parameters, {len(tokens):,} tokens of text, {len(held_out):,} held out", flush=True)
    windows = Windows(tokens, tokenizer.token_to_id(BEGIN), size.context, size.batch, options.seed)
    train(trainer, windows, held_out, options.folder, options.save_minutes)

    export(trainer.model, tokenizer, size, options.folder)
    sample = excerpt(held_out_documents)
    (options.folder / "held_out.txt").write_text(sample, encoding="utf-8")
    model = LlamaForCausalLM.from_pretrained(options.folder, dtype=torch.float32)
    loss = evaluate(model, held_out, size, exact=True)
    sample_loss = evaluate(model, encode_all(tokenizer, [sample]), size, exact=True)
    held_out_bytes = sum(len(text.encode("utf-8")) for text in held_out_text)
    result = {
        "parameters": parameters,
        "size": {key: value for key, value in asdict(size).items() if key != "steps"},
        "seed": options.seed,
        "steps": trainer.steps,
        "tokens": trainer.steps * size.batch * size.context,
        "torch": torch.__version__,
        "loss": round(loss, 4),
        "perplexity": round(math.exp(loss), 3),
        "bits_per_byte": round(loss * len(held_out) / held_out_bytes / math.log(2), 4),
        "excerpt_perplexity": round(math.exp(sample_loss), 3),
    }
    write_readme(options.folder, result, options.size, options.threads)
    print_result(result)


if __name__ == "__main__":
    main()
