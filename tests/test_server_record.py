"""What is known of a request, the line that the log has of it, and what the metrics count."""

from __future__ import annotations

import os
import re
import threading
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from localinfer.engine.sequence import NearMiss
from localinfer.engine.statistics import EngineStatistics
from localinfer.errors import LocalInferError
from localinfer.server.metrics import FINISHED, Metrics
from localinfer.server.record import CLIENT_LEFT, RequestRecord
from localinfer.server.request_log import WAITING_LINES, RequestLog, escaped, request_line

TOKENIZER = SimpleNamespace(token_bytes=lambda token: {12: b' 12"\n', 13: b"\xf0"}[token])


def engine_request(arrived: float, *generated: int, reason: str | None = "stop", **changes: Any) -> Any:
    """A request whose answers have these numbers of tokens; it waits 1 second, and a token takes a tenth."""
    longest = max(generated, default=0)
    first = arrived + 3 if longest else 0.0
    values = {
        "first_step": arrived + 1,
        "first_token": first,
        "last_token": first + 0.1 * (longest - 1) if longest else 0.0,
        "prompt": array("i", range(10)),
        "cached": 4,
        "preemptions": 0,
        "near_miss": None,
        "params": SimpleNamespace(n=len(generated), max_tokens=None),
        "choices": [SimpleNamespace(generated_count=n, finish_reason=reason) for n in generated],
    }
    return SimpleNamespace(**(values | changes))


def finished(*requests: Any, status: int = 200, error: str = "", **fields: Any) -> RequestRecord:
    record = RequestRecord("/v1/chat/completions", model="tiny", **fields)
    for request in requests:
        record.add(request, TOKENIZER)  # type: ignore[arg-type]
    record.done(status, error)
    return record


def values(line: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)', line))


def test_phases_follow_each_other_and_add_up() -> None:
    record = finished(engine_request(100.0, 11), arrived=99.5)
    assert record.queue_seconds == 1.5
    assert record.prefill_seconds == 2.0
    assert record.decode_seconds == pytest.approx(1.0)
    assert record.tokens_per_second == pytest.approx(10.0)
    assert (record.prompt_tokens, record.cached_tokens, record.new_tokens, record.generated_tokens) == (10, 4, 6, 11)


def test_several_prompts_and_answers_are_one_request() -> None:
    record = finished(engine_request(100.0, 11, 6), engine_request(102.0, 3, reason="length"), arrived=100.0)
    assert record.queue_seconds == 1.0
    assert record.prefill_seconds == 2.0
    assert record.decode_seconds == pytest.approx(5.2 - 3.0)
    assert record.tokens_per_second == pytest.approx((11 + 6 + 3 - 3) / 2.2)
    assert record.finish_reasons == ("stop", "stop", "length")
    assert record.prompt_tokens == 20
    assert values(request_line(record))["finish"] == "stop*2,length*1"


def test_a_request_that_never_had_a_step_was_in_the_queue_all_the_time() -> None:
    waiting = engine_request(0.0, 0, reason="cancelled", first_step=0.0, cached=None)
    record = finished(waiting, status=CLIENT_LEFT)
    assert record.queue_seconds == record.total_seconds > 0
    assert record.prefill_seconds == record.decode_seconds == record.tokens_per_second == 0.0
    assert values(request_line(record)) | {"status": "499", "finish": "cancelled", "tokens": "0"} == values(
        request_line(record)
    )


def test_what_is_done_is_reported_once() -> None:
    reported: list[RequestRecord] = []
    record = RequestRecord("/tokenize", report=reported.append)
    record.done(400, "no")
    record.done()
    assert reported == [record]
    assert (record.status, record.error) == (400, "no")


def test_gaps_lie_between_the_steps_that_brought_tokens() -> None:
    record = RequestRecord("/v1/completions")
    assert record.gaps == []
    record.token_times.extend([1.0, 1.5, 3.0])
    assert record.gaps == [0.5, 1.5]


def test_the_line_names_phases_tokens_and_the_reason() -> None:
    line = request_line(finished(engine_request(100.0, 11), arrived=99.5, id="chatcmpl-1"))
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} endpoint=/v1/chat/completions status=200 ", line)
    found = values(line)
    assert (found["finish"], found["model"], found["cached"], found["new"]) == ("stop", "tiny", "4", "6")
    assert (found["queue_ms"], found["prefill_ms"], found["decode_ms"]) == ("1500.0", "2000.0", "1000.0")
    assert (found["tokens"], found["tokens_per_s"], found["id"]) == ("11", "10.0", "chatcmpl-1")
    assert "parted_at" not in found
    assert "error" not in found


def test_a_near_miss_names_the_first_token_that_differed() -> None:
    found = values(request_line(finished(engine_request(100.0, 1, near_miss=NearMiss(8, 12, 13)))))
    assert found["parted_at"] == "8"
    assert found["cached_token"] == r'" 12\"\n"'
    assert found["asked_token"] == r'"\xf0"'
    early = values(request_line(finished(engine_request(100.0, 1, near_miss=NearMiss(7, 12, 13)))))
    assert "parted_at" not in early


@pytest.mark.parametrize(
    "text",
    [
        '"\n2026 endpoint=/forged status=200',
        '" status=200 x="',
        "\x1b[31mred\x9b1m\x07",
        "\u202eevil\u2028line\u2029\x85\r\x0b\x0c",
        "\ud800 \udcff",
        "a\\",
        'a\\" b=c',
        "",
    ],
)
def test_what_clients_sent_stays_in_its_value(text: str) -> None:
    line = request_line(finished(client=text, status=400, error=f"no model {text}", ignored_fields=(text, "x")))
    assert line.isprintable()
    assert line.encode()
    found = values(line)
    assert (found["status"], found["endpoint"]) == ("400", "/v1/chat/completions")
    assert set(found) <= {"endpoint", "status", "model", "total_ms", "client", "error", "ignored"}


def test_long_texts_are_cut_and_say_so() -> None:
    assert escaped("x" * 1000) == "x" * 300 + "... (1000 characters)"


def test_lines_arrive_in_order(tmp_path: Path) -> None:
    log = RequestLog.to_file(tmp_path / "log")
    for number in range(100):
        log.request(finished(id=str(number)))
    log.failure("it broke\x1b", ValueError("forged\nline \x07"))
    log.close()
    *lines, last = (tmp_path / "log").read_text().splitlines()
    assert [values(line)["id"] for line in lines[:100]] == [str(number) for number in range(100)]
    assert r"it broke\x1b:" in lines[100]
    assert last.endswith(r"line \x07")
    assert log.lost == 0


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match="missing"):
        RequestLog.to_file(tmp_path / "missing" / "log")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    log = RequestLog.to_file(Path("/dev/full"))
    log.request(finished())
    log.close()
    assert log.lost == 1


def test_a_closed_descriptor_loses_lines_and_nothing_else() -> None:
    for log in (RequestLog(None), RequestLog(closed_pipe())):
        log.request(finished())
        log.close()
        assert log.lost == 1


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_standard_error_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    log = RequestLog.to_standard_error()
    log.request(finished())
    log.close()
    assert log.lost == 1


def test_lost_lines_are_told_when_there_is_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full after five bytes of the first line, and for the second; then somebody makes room."""
    tried = threading.Semaphore(0)
    room = iter([5, 0, 0])

    def write(descriptor: int, data: memoryview) -> int:
        allowed = next(room, len(data))
        try:
            if allowed == 0:
                raise OSError(28, "No space left on device")
            return real_write(descriptor, data[:allowed])
        finally:
            tried.release()

    real_write = os.write
    monkeypatch.setattr("localinfer.server.request_log.os.write", write)
    log = RequestLog.to_file(tmp_path / "log")
    for number in range(3):
        log.say(f"line {number}")
    log.close()
    torn, told, last = (tmp_path / "log").read_text().splitlines()
    assert len(torn) == 5
    assert told.endswith(" 2 lines of this log could not be written")
    assert last.endswith(" line 2")
    assert log.lost == 2


def test_a_reader_that_does_not_read_holds_up_nobody() -> None:
    """The pipe is full, then the lines that may wait are; whoever logs more goes on at once."""
    reader, writer = os.pipe()
    log = RequestLog(writer)
    for _ in range(2 * WAITING_LINES):
        log.say("x" * 1000)
    assert log.lost > 0
    log.close(timeout=0.01)
    os.close(reader)  # ends the thread, which waits for the pipe
    log._thread.join(60)
    assert not log._thread.is_alive()


class Models:
    """Models that are in memory, as far as the metrics look at them."""

    def __init__(self) -> None:
        self.loaded: list[Any] = []

    def load(self, **counts: int) -> EngineStatistics:
        statistics = EngineStatistics(**counts)
        engine = SimpleNamespace(statistics=statistics)
        self.loaded.append(SimpleNamespace(name="tiny", thread=Thread(engine)))
        return statistics

    def __call__(self) -> list[Any]:
        return self.loaded


class Thread:
    def __init__(self, engine: Any) -> None:
        self.engine = engine


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """By name and the values of labels other than `engine` and `le`."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        assert family.documentation
        for sample in family.samples:
            labels = [v for k, v in sorted(sample.labels.items()) if k not in ("engine", "le")]
            found[sample.name, *labels] = sample.value
    return found


def test_metrics_have_the_names_that_scrapers_know() -> None:
    models = Models()
    models.load(prompt_tokens=7, running=2, kv_blocks_used=1, kv_blocks_total=4)
    metrics = Metrics(models)
    record = finished(engine_request(100.0, 11), arrived=100.0)
    record.token_times.extend(range(11))
    metrics.request(record)
    found = samples(metrics)
    expected = {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:gpu_cache_usage_perc": 0.25,
        "vllm:prompt_tokens_total": 7,
        "vllm:generation_tokens_total": 0,
        "vllm:prefix_cache_queries_total": 7,
        "vllm:prefix_cache_hits_total": 0,
        "vllm:num_preemptions_total": 0,
        "vllm:spec_decode_num_draft_tokens_total": 0,
        "vllm:spec_decode_num_accepted_tokens_total": 0,
        "vllm:time_to_first_token_seconds_sum": 3.0,
        "vllm:inter_token_latency_seconds_count": 10,
        "vllm:time_per_output_token_seconds_count": 10,
        "vllm:request_time_per_output_token_seconds_sum": 0.1,
        "vllm:request_queue_time_seconds_sum": 1.0,
        "vllm:request_prefill_time_seconds_sum": 2.0,
        "vllm:request_decode_time_seconds_sum": 1.0,
        "vllm:request_inference_time_seconds_sum": 3.0,
        "vllm:e2e_request_latency_seconds_count": 1,
        "vllm:request_prompt_tokens_sum": 10,
        "vllm:request_generation_tokens_sum": 11,
        "vllm:request_params_n_sum": 1,
    }
    for name, value in expected.items():
        assert found[name, "tiny"] == pytest.approx(value), name
    assert found["vllm:request_success_total", "stop", "tiny"] == 1
    assert {found["vllm:request_success_total", reason, "tiny"] for reason in FINISHED.values()} == {0, 1}
    assert found["localinfer:http_requests_total", "/v1/chat/completions", "200"] == 1


def test_counters_of_a_model_survive_its_engine() -> None:
    models = Models()
    metrics = Metrics(models)
    counts = models.load(generated_tokens=5, running=1)
    assert samples(metrics)["vllm:generation_tokens_total", "tiny"] == 5
    counts.generated_tokens = 6
    metrics.request(finished(engine_request(100.0, 1)))  # the last look before it is unloaded
    models.loaded.clear()
    for _ in range(2):
        assert samples(metrics)["vllm:generation_tokens_total", "tiny"] == 6
        assert samples(metrics)["vllm:num_requests_running", "tiny"] == 0
    models.load(generated_tokens=10)
    assert samples(metrics)["vllm:generation_tokens_total", "tiny"] == 16
    models.loaded.clear()  # unloaded and loaded again between two looks
    models.load(generated_tokens=3)
    assert samples(metrics)["vllm:generation_tokens_total", "tiny"] == 19


def test_a_request_that_was_refused_counts_as_that_alone() -> None:
    metrics = Metrics(Models(), lambda: 3)
    record = RequestRecord("/v1/completions", model="never loaded")
    record.done(429, "the queue is full")
    metrics.request(record)
    found = samples(metrics)
    assert found["localinfer:http_requests_total", "/v1/completions", "429"] == 1
    assert found["localinfer:log_lines_lost_total",] == 3
    assert not any("never loaded" in key for key in found)
