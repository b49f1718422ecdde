"""The memory plan: the default context, what is refused and with which hint, and the figures it is compared with."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localinfer.engine import plan as planning
from localinfer.engine.memory import free_memory, peak_resident, reset_peak, resident
from localinfer.engine.plan import SPARE_ROWS, Wishes, load_config, make_plan
from localinfer.errors import LocalInferError, MemoryPlanError, UnsupportedError
from localinfer.formats.gguf import GGUFFile, open_gguf
from localinfer.kernels import backend
from localinfer.kernels.base import Backend
from scripted_model import write_scripted_model

MIB = 2**20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    return open_gguf(write_scripted_model(tmp_path_factory.mktemp("plan") / "model.gguf", context=100_000))


@pytest.fixture
def reference() -> Backend:
    return backend("reference")


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda: free)


def needed(file: GGUFFile, backend: Backend, context: int, **wishes: object) -> int:
    return make_plan(file, backend, Wishes(context=context, **wishes)).needed  # type: ignore[arg-type]


def test_the_parts_make_up_the_whole(file: GGUFFile, reference: Backend) -> None:
    plan = make_plan(file, reference, Wishes(context=100))
    assert {"process", "weights", "kv", "activations", "sampler"} <= set(plan.parts)
    assert plan.total == sum(plan.parts.values())
    assert plan.needed == plan.total - plan.parts["process"]
    assert plan.config.kv_blocks == 7
    assert plan.config.max_tokens == 100
    # one layer, one head of 32, k and v of 2 bytes
    assert plan.parts["kv"] == 7 * 16 * 32 * 2 * 2
    for name in plan.parts:
        assert name in str(plan)


def test_the_default_context_is_limited_and_says_so(file: GGUFFile, reference: Backend) -> None:
    plan = make_plan(file, reference, Wishes())
    assert plan.config.context == 8192
    assert "100000" in plan.reason


def test_the_default_context_shrinks_to_what_fits(
    file: GGUFFile, reference: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, needed(file, reference, 2048))
    plan = make_plan(file, reference, Wishes())
    assert plan.config.context == 2048
    assert "free" in plan.reason
    with_free(monkeypatch, needed(file, reference, 2048) - 1)
    assert make_plan(file, reference, Wishes()).config.context == 1792


def test_the_model_s_own_context_is_the_limit(tmp_path: Path, reference: Backend) -> None:
    with open_gguf(write_scripted_model(tmp_path / "small.gguf", context=300)) as file:
        assert make_plan(file, reference, Wishes()).config.context == 300


def test_tensors_that_the_family_does_not_know_are_refused(tmp_path: Path, reference: Backend) -> None:
    path = write_scripted_model(tmp_path / "more.gguf", extra_tensor="blk.0.attn_sinks.weight")
    with (
        open_gguf(path) as file,
        pytest.raises(UnsupportedError, match=r"1 tensors that are not supported: blk.0.attn_sinks"),
    ):
        make_plan(file, reference, Wishes())


def test_a_refusal_names_changes_that_fit(file: GGUFFile, reference: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    full, int8 = needed(file, reference, 4096), needed(file, reference, 4096, kv_type_k="int8", kv_type_v="int8")
    assert int8 < full
    with_free(monkeypatch, int8)
    with pytest.raises(MemoryPlanError, match=r"context of 4096.*MiB are free") as caught:
        make_plan(file, reference, Wishes(context=4096))
    assert "int8" in caught.value.hint
    assert "3840" in caught.value.hint or "context of" in caught.value.hint
    # What the hint says does fit.
    make_plan(file, reference, Wishes(context=4096, kv_type_k="int8", kv_type_v="int8"))
    context = int(caught.value.hint.rsplit("a context of ", 1)[1].split()[0])
    make_plan(file, reference, Wishes(context=context))
    with pytest.raises(MemoryPlanError):
        make_plan(file, reference, Wishes(context=context + 256))


def test_what_can_never_fit_is_refused(file: GGUFFile, reference: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 1000)
    for wishes in (Wishes(), Wishes(context=512)):
        with pytest.raises(MemoryPlanError) as caught:
            make_plan(file, reference, wishes)
        assert "smaller model" in caught.value.hint


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"context": 1}, "context is 1, but must be a whole number from 2 to 2147483647"),
        ({"context": -5}, "context is -5"),
        ({"context": 2**36}, "context is 68719476736"),
        ({"context": "64"}, r"context is '64' \(str\)"),
        ({"max_sequences": 0}, "max_sequences is 0"),
        ({"max_sequences": 2**31 - 1, "context": 64}, "more than can be counted"),
        ({"chunk": 0}, "chunk is 0"),
        ({"chunk": None}, "chunk is None"),
        ({"threads": -1}, "threads is -1, but must be a whole number from 0 to"),
        ({"threads": 2**32 + 2}, "threads is 4294967298"),
        ({"threads": 4 * (os.cpu_count() or 1) + 1}, "threads is"),
        ({"threads": 2.5}, "threads is 2.5"),
        ({"kv_type_v": "f8"}, r"kv_type is 'f8' \(str\), but must be one of f16, bf16, int8, f32"),
        ({"kv_type_k": ["f16"]}, "kv_type is"),
    ],
)
def test_impossible_wishes_are_refused(file: GGUFFile, reference: Backend, wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(LocalInferError, match=words):
        make_plan(file, reference, Wishes(**wishes))


def test_the_pool_holds_a_context_for_every_sequence() -> None:
    config = load_config(Wishes(max_sequences=3, chunk=64), 100)
    assert (config.kv_blocks, config.max_tokens, config.max_rows) == (21, 64, 3 + SPARE_ROWS)
    assert load_config(Wishes(max_sequences=40, chunk=8), 100).max_tokens == 40


def test_a_draft_model_counts(
    file: GGUFFile, reference: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = make_plan(file, reference, Wishes(context=256))
    with open_gguf(write_scripted_model(tmp_path / "draft.gguf")) as draft:
        both = make_plan(file, reference, Wishes(context=256), draft)
        assert both.parts["draft weights"] == alone.parts["weights"]
        assert both.parts["draft kv"] == both.parts["kv"] == alone.parts["kv"]
        assert both.needed > 1.9 * alone.needed
        assert both.draft is not None
        assert both.draft.config.max_rows == 1
        assert "draft weights" in str(both)
        with_free(monkeypatch, both.needed - 1)
        make_plan(file, reference, Wishes(context=256))
        with pytest.raises(MemoryPlanError, match="draft weights"):
            make_plan(file, reference, Wishes(context=256), draft)


def test_the_pool_may_hold_less_but_never_less_than_a_context() -> None:
    assert load_config(Wishes(max_sequences=3, kv_tokens=200), 100).kv_blocks == 13
    assert load_config(Wishes(max_sequences=3, kv_tokens=1), 100).kv_blocks == 7


def test_an_automatic_pool_takes_a_share_of_what_is_free(
    file: GGUFFile, reference: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contexts(free: int) -> int:
        with_free(monkeypatch, free)
        return make_plan(file, reference, Wishes(context=512, max_sequences=5, kv_tokens=0)).config.kv_blocks // 32

    least = needed(file, reference, 512, max_sequences=5, kv_tokens=512)
    one = needed(file, reference, 512, max_sequences=5, kv_tokens=1024) - least
    assert contexts(least) == 1
    assert contexts(least + 4 * 3 * one) == min(5, (least // one + 12) // 4)
    assert contexts(1 << 40) == 5
    with pytest.raises(MemoryPlanError):
        contexts(least - 1)


def test_what_is_promised_to_others_is_not_free(
    file: GGUFFile, reference: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, needed(file, reference, 512) + 1000)
    assert make_plan(file, reference, Wishes(context=512, promised=1000)).fits
    with pytest.raises(MemoryPlanError):
        make_plan(file, reference, Wishes(context=512, promised=1001))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable: 5000 kB\n"}


def test_free_memory_is_what_the_system_has_available(tmp_path: Path) -> None:
    assert free_memory(write(tmp_path, MEMINFO)) == 5000 * 1024


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (  # v2: the tightest limit on the way up counts, cached file pages do not
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "1000000\n",
                "sys/fs/cgroup/a/memory.current": "700000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 50000\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "700000\n",
            },
            350000,
        ),
        (  # v2 in a container: the path is one of the host
            {
                "proc/self/cgroup": "0::/../host/path\n",
                "sys/fs/cgroup/memory.max": "900000\n",
                "sys/fs/cgroup/memory.current": "300000\n",
            },
            600000,
        ),
        (  # v1
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1500000\n",
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 100000\n",
            },
            600000,
        ),
        (  # used up
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "900000\n",
                "sys/fs/cgroup/memory.current": "950000\n",
            },
            0,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 5000 * 1024),
    ],
)
def test_free_memory_respects_container_limits(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert free_memory(write(tmp_path, {**MEMINFO, **files})) == expected


def touched(size: int) -> mmap.mmap:
    """Fresh pages, all of them written to: the heap could have some left that are resident already."""
    block = mmap.mmap(-1, size)
    for offset in range(0, size, mmap.PAGESIZE):
        block[offset] = 1
    return block


def test_resident_memory_grows_with_what_is_touched() -> None:
    before = resident()
    block = touched(64 * MIB)
    assert 60 * MIB < resident() - before < 80 * MIB
    block.close()
    if not reset_peak():
        pytest.skip("the peak cannot be reset here")
    low = peak_resident()
    touched(64 * MIB).close()
    assert peak_resident() - low > 60 * MIB


RUN = """
import random, sys
from localinfer import LLM
from localinfer.engine.memory import peak_resident
with LLM(sys.argv[1], backend="cpu", context=1024, threads=2) as llm:
    prompt = random.Random(1).choices(range(llm.plan.program.vocab_size), k=1000)
    llm.generate(prompt, max_tokens=24, ignore_eos=True)
    print(llm.plan.total, peak_resident())
"""


def test_plan_and_peak_agree_on_a_real_model(smollm2_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("measures resident memory as Linux tells it")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(smollm2_path)], capture_output=True, text=True, check=True, timeout=200
    )
    planned, peak = map(int, done.stdout.split())
    assert abs(peak / planned - 1) <= 0.02, f"planned {planned / MIB:.1f} MiB, peak {peak / MIB:.1f} MiB"
